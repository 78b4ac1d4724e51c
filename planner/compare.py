"""Holds two plans against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ir import Graph, Mesh, Sharding

from .differences import differences
from .plan import Plan
from .planfile import CollectiveRow
from .show import sharding_text


@dataclass(frozen=True, slots=True)
class Side:
    """One plan in figures; times per step, bytes per device."""

    name: str
    cluster: str
    devices: int
    mesh: dict[str, int]
    origin: str
    microbatches: int
    schedule: str
    step_s: float
    compute_s: float
    communication_s: float
    peak_bytes: float
    limit_bytes: float
    lower_bound_s: float
    gap: float
    stop: str


@dataclass(frozen=True, slots=True)
class Total:
    """All collectives of one kind: bytes sent by each device, runs, seconds."""

    bytes: float
    count: float
    seconds: float


@dataclass(frozen=True, slots=True)
class KindRow:
    """One kind of collective in both plans."""

    kind: str
    a: Total
    b: Total


@dataclass(frozen=True, slots=True)
class ArgumentRow:
    """An argument that the plans shard differently."""

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class Comparison:
    """Two plans side by side.

    same_program: both are plans of one function with the same arguments; the number of
        micro-batches may differ.
    difference: how the programs differ, in one sentence; empty if they are equal.
    collectives: by kind, the one that takes longest in either plan first.
    arguments: those of both programs that are sharded differently.
    """

    a: Side
    b: Side
    same_program: bool
    difference: str
    collectives: tuple[KindRow, ...]
    arguments: tuple[ArgumentRow, ...]

    def summary(self) -> dict[str, Any]:
        """The contract of `meshwright compare --json`."""
        return {
            "same_program": self.same_program, "difference": self.difference,
            "a": asdict(self.a), "b": asdict(self.b),
            "collectives": [asdict(row) for row in self.collectives],
            "arguments": [asdict(row) for row in self.arguments],
        }  # fmt: skip


def compare(a: Plan, b: Plan) -> Comparison:
    """Compares two plans, each bound to its function or as loaded from a file."""
    same, difference = _programs(a, b)
    return Comparison(
        _side(a), _side(b), same, difference, _collectives(a, b), _arguments(a, b)
    )  # fmt: skip


def _side(plan: Plan) -> Side:
    file = plan.file
    return Side(
        name=file.name,
        cluster=plan.cluster.name,
        devices=plan.mesh.num_devices,
        mesh=dict(file.mesh),
        origin=file.origin,
        microbatches=file.microbatches,
        schedule=file.schedule,
        step_s=file.step_s,
        compute_s=file.compute_s,
        communication_s=file.communication_s,
        peak_bytes=file.peak_bytes,
        limit_bytes=file.limit_bytes,
        lower_bound_s=file.lower_bound_s,
        gap=plan.gap,
        stop=plan.stop.value,
    )


def _programs(a: Plan, b: Plan) -> tuple[bool, str]:
    """Whether the programs are one, and how they differ."""
    if a.file.graph_digest == b.file.graph_digest:
        return True, ""
    if a.microbatches != b.microbatches and _surface(a) == _surface(b):
        return True, f"the step runs {a.microbatches} and {b.microbatches} micro-batches"
    return False, differences(a.graph, b.graph)


def _surface(plan: Plan) -> tuple[object, ...]:
    """What stays the same when a training step is cut into other micro-batches."""
    graph: Graph = plan.graph
    return plan.file.name, graph.inputs, len(graph.outputs)


def _collectives(a: Plan, b: Plan) -> tuple[KindRow, ...]:
    kinds = sorted({row.kind for plan in (a, b) for row in plan.file.collectives})
    rows = [
        KindRow(kind, _total(kind, a.file.collectives), _total(kind, b.file.collectives))
        for kind in kinds
    ]
    return tuple(sorted(rows, key=lambda row: (-max(row.a.seconds, row.b.seconds), row.kind)))


def _total(kind: str, rows: Sequence[CollectiveRow]) -> Total:
    mine = [row for row in rows if row.kind == kind]
    return Total(
        sum(row.bytes for row in mine),
        sum(row.count for row in mine),
        sum(row.seconds for row in mine),
    )


def _arguments(a: Plan, b: Plan) -> tuple[ArgumentRow, ...]:
    left, right = a.input_shardings(), b.input_shardings()
    return tuple(
        ArgumentRow(name, sharding_text(left[name], a.mesh), sharding_text(right[name], b.mesh))
        for name in left
        if name in right and _differ(left[name], a.mesh, right[name], b.mesh)
    )


def _differ(left: Sharding, mesh_a: Mesh, right: Sharding, mesh_b: Mesh) -> bool:
    """Axes of different meshes have nothing in common but the number of parts they make."""
    if mesh_a == mesh_b:
        return left != right
    return _parts(left, mesh_a) != _parts(right, mesh_b)


def _parts(state: Sharding, mesh: Mesh) -> tuple[int, ...]:
    return tuple(mesh.product(axes) for axes in state.dims)
