from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir.errors import IRError
from ir.mesh import Mesh
from ir.sharding import Sharding, parse_sharding, replicated
from ir.types import TensorType

MESH = Mesh((("x", 2), ("y", 4), ("z", 3)))
TEXTS = {
    "[]": Sharding(()),
    "[-]": Sharding(((),)),
    "[x,-]": Sharding((("x",), ())),
    "[x*y,-]": Sharding((("x", "y"), ())),
    "[-,z]+sum(x)": Sharding(((), ("z",)), (("x", "sum"),)),
    "[-]+sum(x)+max(y)+min(z)": Sharding(((),), (("x", "sum"), ("y", "max"), ("z", "min"))),
}


@st.composite
def shardings(draw: st.DrawFn) -> Sharding:
    """Each axis splits a dimension, is partial, or is not used."""
    rank = draw(st.integers(0, 4))
    dims: list[tuple[str, ...]] = [()] * rank
    partial: list[tuple[str, str]] = []
    for axis in draw(st.permutations(["x", "y", "z", "axis_0"])):
        place = draw(st.sampled_from([*range(rank), "sum", "max", "min", None]))
        if isinstance(place, int):
            dims[place] += (axis,)
        elif place is not None:
            partial.append((axis, place))
    return Sharding(tuple(dims), tuple(partial))


@pytest.mark.parametrize(("text", "sharding"), TEXTS.items())
def test_text_form(text: str, sharding: Sharding) -> None:
    assert str(sharding) == text
    assert parse_sharding(text) == sharding
    assert parse_sharding(f" {text}\n") == sharding


@given(shardings())
def test_text_round_trips(sharding: Sharding) -> None:
    assert parse_sharding(str(sharding)) == sharding


NOT_SHARDINGS = (
    *("", "x", "[x", "[x]y", "[x,]", "[,]", "[x**y]", "[*x]", "[x y]", "[-*x]", "[[x]]"),
    *("[x]+sum()", "[x]+mean(y)", "[x]+sum(y z)"),
)


@pytest.mark.parametrize("text", NOT_SHARDINGS)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(IRError, match="is not a sharding; expected something like"):
        parse_sharding(text)


@pytest.mark.parametrize("text", ["[x,x]", "[x*x]", "[x]+sum(x)", "[-]+sum(x)+max(x)"])
def test_an_axis_has_one_use(text: str) -> None:
    with pytest.raises(IRError, match="a mesh axis is used twice"):
        parse_sharding(text)


def test_only_known_reductions() -> None:
    with pytest.raises(IRError, match="partial over 'x': 'mean' is not one of"):
        Sharding(((),), (("x", "mean"),))


def test_shards() -> None:
    sharding = parse_sharding("[x*y,-,z]")
    assert sharding.local_shape((16, 5, 6), MESH) == (2, 5, 2)
    assert sharding.local_bytes(TensorType((16, 5, 6), "float32"), MESH) == 16 * 5 * 6 * 4 // 24
    assert sharding.axes == ("x", "y", "z")
    assert sharding.fits((16, 5, 6), MESH)
    assert sharding.fits((0, 5, 6), MESH)
    assert not sharding.fits((12, 5, 6), MESH)
    assert not sharding.fits((16, 5), MESH)


def test_partial_results_are_whole_on_every_device() -> None:
    sharding = parse_sharding("[x]+sum(y)")
    assert sharding.local_shape((6,), MESH) == (3,)
    assert sharding.without_partial() == parse_sharding("[x]")
    assert not sharding.is_replicated
    assert not parse_sharding("[-]+sum(y)").is_replicated
    assert replicated(3) == parse_sharding("[-,-,-]")
    assert replicated(3).is_replicated


def test_a_split_that_leaves_a_rest_says_what_to_pad_to() -> None:
    with pytest.raises(IRError, match=r"size 12 does not divide 8 ways over x\*y; pad it to 16"):
        parse_sharding("[x*y]").local_shape((12,), MESH)
    with pytest.raises(IRError, match=r"\[x\] has 1 dimensions, the tensor 2"):
        parse_sharding("[x]").local_shape((12, 12), MESH)
    with pytest.raises(IRError, match="the mesh has no axis 'w'"):
        parse_sharding("[w]").local_shape((12,), MESH)
