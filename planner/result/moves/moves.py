"""The arrays that move when training continues under another plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from costmodel import CollectiveModel, ReshardModel
from ir import IRError, Mesh, Sharding, TensorType

from ...common.errors import PlanError
from ...common.surface import public, public_methods
from ..plan import Plan
from .common_mesh import Refined, refined
from .device_shards import Ints, lost
from .held_arrays import held_arrays, received

# On meshes with more axes the shortest path between two shardings has too many states.
MOST_AXES = 4


@public_methods
@dataclass(frozen=True, slots=True)
class ArrayMove:
    """One array under both plans.

    before, after: shardings with the sizes of their axes.
    nbytes: size of the whole array [bytes].
    received_bytes: largest number of bytes that a device receives.
    total_bytes: bytes that all devices receive together.
    lost_bytes: bytes that no remaining device holds; they come from a checkpoint.
    collectives: cheapest sequence of collectives between the shardings, where both plans are of
        one program and use the same devices in meshes with common parts; else empty, and pieces
        are copied.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    before: str
    after: str
    nbytes: int
    received_bytes: int
    total_bytes: int
    lost_bytes: int
    collectives: tuple[str, ...]


@public_methods
@dataclass(frozen=True)
class Moves:
    """The arrays that live from step to step in both plans, the one that moves most first.

    devices: numbers of devices of the two plans.
    received_bytes: largest number of bytes that a device receives, over all arrays.
    only_before, only_after: names of arrays of one plan only.
    """

    devices: tuple[int, int]
    arrays: tuple[ArrayMove, ...]
    received_bytes: int
    total_bytes: int
    lost_bytes: int
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """The contract of `meshwright reshard --json`."""
        return asdict(self)


@public
def moves(before: Plan, after: Plan, *, lost_devices: Sequence[int] = ()) -> Moves:
    """The arrays that move when training continues under another plan.

    Device i of the new plan is device i of the old one or, after a loss of devices, the i-th of the
    remaining ones.

    Args:
        before: the plan whose shardings the arrays have.
        after: the plan whose shardings they get.
        lost_devices: indices of the lost devices of the old plan.

    Raises:
        PlanError: if an array has another shape or type in the new plan, or a device is unknown.
    """
    had, count = sum(before.file.groups), sum(after.file.groups)
    survivors = _survivors(had, lost_devices)
    here = np.full(count, -1, dtype=np.int64)  # new device -> old device
    here[: len(survivors)] = survivors[:count]
    in_stages = before.file.in_stages or after.file.in_stages
    common = None if lost_devices or in_stages else refined(before.mesh, after.mesh)
    path = _Paths(after, common if common and len(common.mesh.axes) <= MOST_AXES else None)
    old, new = held_arrays(before), held_arrays(after)
    per_device = np.zeros(count, dtype=np.int64)
    rows: list[ArrayMove] = []
    for name in old:
        if name not in new:
            continue
        a, b = old[name], new[name]
        type_ = a.type_
        if type_ != b.type_:
            raise PlanError(
                f"is {type_} in the old plan and {b.type_} in the new one", kind="differs",
                where=name, remedy="both plans must be of one program",
            )  # fmt: skip
        size = type_.nbytes // max(1, int(np.prod(type_.shape, dtype=np.int64)))
        shards = a.shards(had)
        there = [each.on(here) for each in shards]
        got = received(there, [each.on(np.arange(count)) for each in b.shards(count)]) * size
        per_device += got
        rows.append(
            ArrayMove(
                name, type_.shape, type_.dtype, a.text, b.text, type_.nbytes, int(got.max()),
                int(got.sum()), sum(lost(each, survivors) for each in shards) * size,
                path.collectives(type_, a.pieces[0].state, b.pieces[0].state),
            )
        )  # fmt: skip
    rows.sort(key=lambda row: -row.total_bytes)
    return Moves(
        (had, count), tuple(rows), int(per_device.max()),
        sum(row.total_bytes for row in rows), sum(row.lost_bytes for row in rows),
        tuple(name for name in old if name not in new),
        tuple(name for name in new if name not in old),
    )  # fmt: skip


def _survivors(count: int, gone: Sequence[int]) -> Ints:
    if unknown := [d for d in gone if not 0 <= d < count]:
        raise PlanError(
            f"there is no device {unknown[0]}: the old plan has {count}", kind="bad-option",
            where="lost devices", remedy=f"write numbers from 0 to {count - 1}",
        )  # fmt: skip
    return np.array([d for d in range(count) if d not in set(gone)], dtype=np.int64)


class _Paths:
    """Collectives between states on the common mesh of two plans."""

    def __init__(self, plan: Plan, common: Refined | None) -> None:
        self.common = common
        if common is not None:
            collectives = CollectiveModel(plan.cluster)
            self.model = ReshardModel(plan.cluster, common.mesh, collectives)

    def collectives(self, type_: TensorType, a: Sharding, b: Sharding) -> tuple[str, ...]:
        if self.common is None:
            return ()
        try:
            steps = self.model.path(type_, self.common.first(a), self.common.second(b))
        except IRError:  # a dimension that does not divide by the axes on the way
            return ()
        mesh: Mesh = self.common.mesh
        return tuple(
            f"{step.collective} of {mesh.product(step.axes)}" for step in steps if step.collective
        )
