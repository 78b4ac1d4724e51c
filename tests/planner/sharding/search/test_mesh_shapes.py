"""Mesh shapes that are searched: every one uses all devices and keeps islands together."""

from __future__ import annotations

import math

import pytest

from costmodel import parse_cluster
from planner.common.mesh_setting import AXES
from planner.sharding.search.mesh_shapes import MOST_AXES, mesh_of, mesh_shapes

CLUSTERS = ("1xh100", "2xh100", "6xhost", "7xhost", "8xh100", "12xhost", "16xh100:8", "64xh100:8",
            "24xh100:8", "72xgb200", "512xh100:8", "1024xa100:4")  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERS)
def test_shapes_use_all_devices_once(name: str) -> None:
    cluster = parse_cluster(name)
    shapes = mesh_shapes(cluster)
    assert len(set(shapes)) == len(shapes)
    for shape in shapes:
        assert math.prod(shape) == cluster.num_devices
        assert 1 <= len(shape) <= MOST_AXES or cluster.num_devices == 1
        assert all(size > 1 for size in shape) or shape == (1,)


@pytest.mark.parametrize("name", CLUSTERS)
def test_flat_mesh_comes_first(name: str) -> None:
    cluster = parse_cluster(name)
    shapes = mesh_shapes(cluster)
    assert shapes[0] == (cluster.num_devices,)
    assert [len(s) for s in shapes] == sorted(len(s) for s in shapes)


@pytest.mark.parametrize("name", ["16xh100:8", "64xh100:8", "24xh100:8", "512xh100:8"])
def test_axes_stay_inside_an_island_or_span_islands(name: str) -> None:
    """The sizes from the innermost axis on reach the island exactly, unless one axis is all."""
    cluster = parse_cluster(name)
    for shape in mesh_shapes(cluster)[1:]:
        reached = {math.prod(shape[i:]) for i in range(len(shape))}
        assert cluster.island in reached


def test_islands_of_one_kind_are_not_searched_twice() -> None:
    """Inside an island the order of axes does not matter."""
    shapes = mesh_shapes(parse_cluster("8xh100"))
    assert shapes == ((8,), (2, 4), (2, 2, 2))
    assert len({tuple(sorted(s)) for s in shapes}) == len(shapes)


def test_axes_are_named_from_the_outermost() -> None:
    mesh = mesh_of((2, 4, 8))
    assert mesh.axes == (("x", 2), ("y", 4), ("z", 8))
    assert mesh.names == tuple(AXES[:3])


def test_few_shapes_for_many_devices() -> None:
    assert len(mesh_shapes(parse_cluster("1024xa100:4"))) < 20
