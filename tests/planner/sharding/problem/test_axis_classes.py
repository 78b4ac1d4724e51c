"""Options that differ in the order of interchangeable mesh axes only are one class."""

from __future__ import annotations

import pytest

from costmodel import CollectiveModel, ComputeModel, ReshardModel, parse_cluster
from ir import Mesh, Sharding
from planner.sharding.problem.axis_classes import AxisClasses
from planner.sharding.problem.records import MenuCache, NodeRef


def axes_of(cluster: str, *sizes: int) -> AxisClasses:
    machine = parse_cluster(cluster)
    mesh = Mesh(tuple(zip("xyz", sizes, strict=False)))
    reshard = ReshardModel(machine, mesh, CollectiveModel(machine))
    return AxisClasses(MenuCache(mesh, reshard, ComputeModel(machine)))


def test_states_are_alike_where_as_many_axes_split_each_dimension() -> None:
    states = (
        Sharding(((), ())), Sharding((("x",), ("y",))), Sharding((("z",), ("x",))),
        Sharding((("x", "y"), ())), Sharding((("y", "z"), ())), Sharding(((), ("x", "y"))),
        Sharding((("x",), ()), (("y", "sum"),)), Sharding((("z",), ()), (("x", "sum"),)),
    )  # fmt: skip
    found = axes_of("8xh100", 2, 2, 2).of(NodeRef(-1, 0, (), states)).tolist()
    assert found == [0, 1, 1, 2, 2, 3, 4, 4]


@pytest.mark.parametrize(("cluster", "sizes", "some"), [
    ("8xh100", (2, 2, 2), True), ("8xh100", (2, 4), False), ("8xh100", (8,), False),
    ("16xh100:8", (2, 8), False), ("4xh100:2", (2, 2), False),
])  # fmt: skip
def test_axes_are_interchangeable_within_one_kind_of_link(
    cluster: str, sizes: tuple[int, ...], some: bool
) -> None:
    assert axes_of(cluster, *sizes).some is some


def test_operands_of_regions_are_of_two_classes_with_and_without_a_copy() -> None:
    states = (Sharding((("x",),)), Sharding((("y",),)))
    found = axes_of("8xh100", 2, 2, 2).of(NodeRef(-1, -1, (), (*states, *states))).tolist()
    assert found == [0, 0, 1, 1]
