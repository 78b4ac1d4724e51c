from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir.errors import IRError
from ir.factors import FactorSpec, factor_spec, shardings_of
from ir.mesh import Mesh
from ir.ops.build import build_spec
from ir.sharding import Sharding
from ir.table import lookup
from ir.types import Shape, TensorType

MESH = Mesh((("x", 2), ("y", 4)))


def f32(*shape: int) -> TensorType:
    return TensorType(shape, "float32")


def reshape(before: Shape, after: Shape) -> FactorSpec:
    attrs = {"new_sizes": after, "dimensions": None}
    return lookup("reshape").factors((f32(*before),), (f32(*after),), attrs)


def test_a_product_as_text() -> None:
    spec = factor_spec("b m k+, k+ n -> b m n", [(2, 3, 4), (4, 5)], [(2, 3, 5)])
    assert dict(spec.sizes) == {"b": 2, "m": 3, "k": 4, "n": 5}
    assert spec.kind("k") == "sum"
    assert spec.kind("m") == "plain"
    assert spec.points == 120
    assert str(spec) == "b m k+, k+ n -> b m n"


def test_one_mark_is_enough_for_all_places() -> None:
    assert str(factor_spec("k+, k -> ", [(4,), (4,)], [()])) == "k+, k+ -> "


def test_a_compound_takes_its_size_from_its_parts() -> None:
    spec = factor_spec("(a b) -> a b", [(12,)], [(3, 4)])
    assert dict(spec.sizes) == {"a": 3, "b": 4}
    assert dict(factor_spec("(a b) -> (a b)", [(12,)], [(12,)], a=3).sizes) == {"a": 3, "b": 4}


@pytest.mark.parametrize(
    ("text", "operands", "message"),
    [
        ("a b", [(2, 3)], "no '->'"),
        ("a, b -> a", [(2,)], "lists 2 tensors where there are 1"),
        ("a b -> a", [(2,)], "gives 2 dimensions"),
        ("a a -> a", [(2, 3)], "the dimension 3"),
        ("(a b) -> a", [(7,)], "the dimension 7"),
    ],
)
def test_text_and_shapes_must_agree(text: str, operands: list[Shape], message: str) -> None:
    with pytest.raises(IRError, match=message):
        factor_spec(text, operands, [(2,)])


def test_splitting_a_sum_factor_leaves_a_partial_sum() -> None:
    spec = factor_spec("m k+, k n -> m n", [(8, 8), (8, 8)], [(8, 8)])
    operands, results = shardings_of(spec, {"k": ("y",), "m": ("x",)}, MESH)
    assert operands == (Sharding((("x",), ("y",))), Sharding((("y",), ())))
    assert results == (Sharding((("x",), ()), (("y", "sum"),)),)


def test_partial_results_are_listed_in_mesh_order() -> None:
    spec = factor_spec("a> b> -> ", [(8, 8)], [()])
    _, results = shardings_of(spec, {"a": ("y",), "b": ("x",)}, MESH)
    assert results[0].partial == (("x", "max"), ("y", "max"))


def test_a_minor_factor_waits_for_the_major_one() -> None:
    spec = factor_spec("(a b) -> a b", [(16,)], [(2, 8)])
    operands, _ = shardings_of(spec, {"a": ("x",), "b": ("y",)}, MESH)
    assert operands == (Sharding((("x", "y"),)),)
    with pytest.raises(IRError, match="while 'a' is not wholly"):
        shardings_of(spec, {"b": ("y",)}, MESH)


@pytest.mark.parametrize("mark", ["!", "~"])
def test_whole_and_window_factors_are_not_split(mark: str) -> None:
    spec = factor_spec(f"i{mark} -> i", [(8,)], [(8,)])
    with pytest.raises(IRError, match="cannot be split"):
        shardings_of(spec, {"i": ("x",)}, MESH)


def test_a_split_must_divide() -> None:
    spec = factor_spec("i -> i", [(6,)], [(6,)])
    with pytest.raises(IRError, match="size 6 does not divide 4 ways"):
        shardings_of(spec, {"i": ("y",)}, MESH)


def test_unit_dimensions_have_no_factor() -> None:
    types = (f32(4, 1, 0),)
    spec = build_spec(types, [("a", "b", "c")], types, [("a", "b", "c")], {"b": "whole"})
    assert str(spec) == "a 1 1 -> a 1 1"
    assert spec.kinds == ()


def test_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(IRError, match="were named for"):
        build_spec((f32(4),), [("a", "b")], (), [])
    with pytest.raises(IRError, match="do not make a dimension of 6"):
        build_spec((f32(4, 6),), [("a", "a")], (), [])


# --- reshapes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ((4, 6), (24,), "f0 f1 -> (f0 f1)"),
        ((24,), (2, 3, 4), "(f0 f1 f2) -> f0 f1 f2"),
        ((4, 6), (2, 12), "(f0 f1) f2 -> f0 (f1 f2)"),
        ((6, 4), (8, 3), "x0! x1! -> y0! y1!"),
        ((5, 6, 4), (5, 8, 3), "f0 x1! x2! -> f0 y1! y2!"),
        ((2, 1, 3), (1, 2, 3, 1), "f0 1 f1 -> 1 f0 f1 1"),
        ((1, 1), (), "1 1 -> "),
        ((), (1,), " -> 1"),
        ((0, 4), (2, 0), "1 x1! -> y0! 1"),
    ],
)
def test_reshapes(before: Shape, after: Shape, text: str) -> None:
    assert str(reshape(before, after)) == text


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@given(sizes, st.data())
def test_regrouping_keeps_every_factor_free(parts: list[int], data: st.DataObject) -> None:
    """If both shapes group one list of sizes, then nothing needs to be whole."""

    def grouped() -> Shape:
        cuts = data.draw(st.sets(st.integers(1, len(parts))))
        edges = [0, *sorted(cuts - {len(parts)}), len(parts)]
        return tuple(math.prod(parts[a:b]) for a, b in pairwise(edges))

    before, after = grouped(), grouped()
    spec = reshape(before, after)
    assert not spec.kinds
    assert spec.points == math.prod(parts)


@given(st.permutations([2, 3, 4]), st.permutations([4, 2, 3]))
def test_factors_multiply_to_the_dimensions(before: list[int], after: list[int]) -> None:
    spec = reshape(tuple(before), tuple(after))
    for dims, shape in ((spec.operands[0], before), (spec.results[0], after)):
        assert [math.prod(spec.size(name) for name in dim) for dim in dims] == list(shape)
    if before == after:
        assert not spec.kinds
