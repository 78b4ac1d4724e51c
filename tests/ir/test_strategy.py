# pyright: basic
"""Menus hold what is legal, all of it, and the unsplit way first."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import sharded_dims
from ir import IRError, Mesh, Sharding, factor_spec, parse_sharding
from ir.strategy import MENU_LIMIT, factor_axes, strategies, strategy_of, value_states

MESH = Mesh((("x", 2), ("y", 4)))
DOT = factor_spec("m k+, k+ n -> m n", [(8, 16), (16, 4)], [(8, 4)])
ADD = factor_spec("i j, i j -> i j", [(8, 4), (8, 4)], [(8, 4)])


def show(states) -> tuple[str, ...]:
    return tuple(map(str, states))


def test_product_has_every_split_of_its_factors() -> None:
    menu = strategies(DOT, MESH)
    assert menu[0].roles == ("", "")
    assert len({s.roles for s in menu}) == len(menu) == 15  # all pairs but n twice, 4 in 8 parts
    by_roles = {s.roles: s for s in menu}
    assert show(by_roles["m", "n"].operands) == ("[x,-]", "[-,y]")
    assert show(by_roles["m", "n"].results) == ("[x,y]",)
    assert show(by_roles["k", "m"].results) == ("[y,-]+sum(x)",)
    assert show(by_roles["k", "k"].results) == ("[-,-]+sum(x)+sum(y)",)
    assert show(by_roles["m", "m"].operands) == ("[x*y,-]", "[-,-]")


def test_sizes_that_do_not_divide_are_left_out() -> None:
    spec = factor_spec("m k+, k+ n -> m n", [(6, 5), (5, 1)], [(6, 1)])
    assert {s.roles for s in strategies(spec, MESH)} == {("", ""), ("m", "")}


def test_window_and_whole_factors_are_not_split() -> None:
    spec = factor_spec("i j! -> i j!", [(8, 8)], [(8, 8)])
    assert {role for s in strategies(spec, MESH) for role in s.roles} == {"", "i"}
    spec = factor_spec("i j~ -> i j~", [(8, 8)], [(8, 8)])
    assert {role for s in strategies(spec, MESH) for role in s.roles} == {"", "i"}


def test_partial_sums_pass_through_linear_groups() -> None:
    menu = {s.roles: s for s in strategies(ADD, MESH, ((0, 1), (0,)))}
    assert show(menu["i", "@0"].operands) == ("[x,-]+sum(y)", "[x,-]+sum(y)")
    assert show(menu["i", "@0"].results) == ("[x,-]+sum(y)",)
    assert show(menu["", "@1"].operands) == ("[-,-]+sum(y)", "[-,-]")
    assert show(menu["@0", "@0"].results) == ("[-,-]+sum(x)+sum(y)",)
    assert ("@0", "@1") not in menu


def test_axes_of_size_one_have_no_role() -> None:
    mesh = Mesh((("x", 1), ("y", 4)))
    assert {s.roles[0] for s in strategies(DOT, mesh)} == {""}


def test_long_menus_keep_those_that_split_fewest_factors() -> None:
    shape = (8,) * 13
    letters = "a b c d e f g h i j k l m"
    spec = factor_spec(f"{letters} -> {letters}", [shape], [shape])
    menu = strategies(spec, Mesh((("x", 2), ("y", 2), ("z", 2))))
    assert len(menu) == MENU_LIMIT
    assert menu[0].roles == ("", "", "")
    assert all(any(s.roles == (n, n, n) for s in menu) for n in spec.names)


def test_a_strategy_by_its_roles() -> None:
    for s in strategies(DOT, MESH):
        assert strategy_of(DOT, MESH, s.roles) == s
    with pytest.raises(IRError, match="not legal"):
        strategy_of(factor_spec("i! -> i!", [(8,)], [(8,)]), MESH, ("i", ""))
    with pytest.raises(IRError, match="not legal"):
        strategy_of(factor_spec("i -> i", [(6,)], [(6,)]), MESH, ("", "i"))


def test_axes_of_factors() -> None:
    assert factor_axes(("m", "m"), MESH) == {"m": ("x", "y")}
    assert factor_axes(("", "@0"), MESH) == {}


SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12])


@given(st.tuples(SIZES, SIZES, SIZES), st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (3, 2)]))
@settings(max_examples=40)
def test_every_strategy_is_legal_and_none_is_missing(
    sizes: tuple[int, int, int], shape: tuple[int, ...]
) -> None:
    m, k, n = sizes
    mesh = Mesh(tuple(zip("xyz", shape, strict=False)))
    shapes = [(m, k), (k, n)], [(m, n)]
    spec = factor_spec("m k+, k+ n -> m n", *shapes)
    menu = strategies(spec, mesh)
    for s in menu:
        for state, dims in zip((*s.operands, *s.results), (*shapes[0], *shapes[1]), strict=True):
            assert state.fits(dims, mesh)
    known = {s.roles for s in menu}
    for roles in itertools.product(("", "m", "k", "n"), repeat=len(shape)):
        axes = factor_axes(roles, mesh)
        legal = all(
            spec.size(f) % mesh.product(a) == 0 and spec.size(f) > 1 for f, a in axes.items()
        )
        assert (roles in known) == legal


@given(st.lists(SIZES, max_size=3).map(tuple), st.booleans())
@settings(max_examples=40)
def test_states_of_a_value_are_distinct_and_fit(shape: tuple[int, ...], partial: bool) -> None:
    states = value_states(MESH, sharded_dims(shape, MESH), partial=partial)
    assert states[0] == Sharding(((),) * len(shape))
    assert len(set(states)) == len(states)
    assert all(state.fits(shape, MESH) for state in states)
    assert partial or not any(state.partial for state in states)
    if partial:
        assert Sharding(states[0].dims, (("x", "sum"), ("y", "sum"))) in states
        assert not any(set(s.axes) & {a for a, _ in s.partial} for s in states)


def test_states_of_a_matrix() -> None:
    found = show(value_states(MESH, sharded_dims((8, 3), MESH), partial=False))
    assert {"[-,-]", "[x,-]", "[y,-]", "[x*y,-]"} <= set(found)
    assert not any(parse_sharding(text).dims[1] for text in found)
