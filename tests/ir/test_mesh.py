from __future__ import annotations

import pytest

from ir.errors import IRError
from ir.mesh import Mesh

MESH = Mesh((("data", 2), ("model", 4)))


def test_sizes() -> None:
    assert MESH.names == ("data", "model")
    assert MESH.sizes == (2, 4)
    assert MESH.num_devices == 8
    assert MESH.size("model") == 4
    assert MESH.product(("data", "model")) == 8
    assert MESH.product(()) == 1
    assert str(MESH) == "data=2,model=4"


def test_one_device_needs_no_axis() -> None:
    assert Mesh(()).num_devices == 1
    assert str(Mesh(())) == ""


def test_an_unknown_axis_is_refused_with_those_there_are() -> None:
    with pytest.raises(IRError, match="the mesh has no axis 'x'; it has data, model"):
        MESH.size("x")
    with pytest.raises(IRError, match="the mesh has no axis 'x'; it has none"):
        Mesh(()).product(("x",))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ((("x", 2), ("x", 2)), "must have different names"),
        ((("x", 0),), "must have a size of at least 1, got 0"),
        ((("", 2),), "must be named with letters, digits and '_'"),
        ((("x,y", 2),), "must be named with letters, digits and '_'"),
        ((("x*y", 2),), "must be named with letters, digits and '_'"),
    ],
)
def test_meshes_are_valid_once_built(axes: tuple[tuple[str, int], ...], message: str) -> None:
    with pytest.raises(IRError, match=message):
        Mesh(axes)
