"""Compares two plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ir import Graph, Mesh, Sharding, differences

from ..common.surface import public, public_methods
from ..common.units_text import bytes_text, seconds_text, sharding_text
from ..inspect.cost_changes import Change, changes
from ..sharding.cost.account import Collective
from .plan import Plan

MOST_CHANGES = 8


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """The figures of one plan: seconds per step, bytes per device.

    For a plan in stages compute and communication are those of its busiest stage, and the mesh is
    the number of stages.
    """

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
    exposed_s: float
    peak_bytes: float
    limit_bytes: float
    lower_bound_s: float
    gap: float
    stop: str


@dataclass(frozen=True, slots=True)
class Total:
    """All collectives of one kind: bytes sent by each device, number of runs, seconds."""

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


@public_methods
@dataclass(frozen=True)
class Comparison:
    """Two plans side by side.

    same_program: whether both are plans of one function with the same arguments; the numbers of
        micro-batches may differ.
    difference: one sentence on how the programs differ; empty if they are equal.
    collectives: totals by kind, the slowest first.
    arguments: arguments with different shardings.
    changes: the collectives that cause the difference in time.
    """

    a: ComparedPlan
    b: ComparedPlan
    same_program: bool
    difference: str
    collectives: tuple[KindRow, ...]
    arguments: tuple[ArgumentRow, ...]
    changes: tuple[Change, ...]

    def verdict(self, names: tuple[str, str] = ("a", "b")) -> str:
        """The comparison in a sentence.

        Args:
            names: names of the two plans.
        """
        a, b = self.a, self.b
        ratio = b.step_s / a.step_s - 1 if a.step_s else 0.0
        pace = "as fast as" if abs(ratio) < 5e-4 else (
            f"{abs(ratio):.1%} {'slower' if ratio > 0 else 'faster'} than"
        )  # fmt: skip
        parts = [
            f"{_more(b.exposed_s - a.exposed_s, a.step_s)} exposed communication",
            f"{_more(b.compute_s - a.compute_s, a.step_s)} compute",
        ]
        memory = b.peak_bytes - a.peak_bytes
        held = f"{bytes_text(abs(memory))} {'more' if memory > 0 else 'less'} memory"
        fits = "" if b.peak_bytes <= b.limit_bytes * (1 + 1e-9) else ", which does not fit"
        return f"{names[1]} is {pace} {names[0]}: {', '.join(parts)}; {held} per device{fits}"

    def summary(self) -> dict[str, Any]:
        """The contract of `meshwright compare --json`."""
        return {
            "same_program": self.same_program, "difference": self.difference,
            "a": asdict(self.a), "b": asdict(self.b),
            "collectives": [asdict(row) for row in self.collectives],
            "arguments": [asdict(row) for row in self.arguments],
            "changes": [asdict(row) for row in self.changes], "verdict": self.verdict(),
        }  # fmt: skip


@public
def compare(a: Plan, b: Plan) -> Comparison:
    """Compares two plans, each bound to its function or as loaded from a file."""
    if a.file.in_stages or b.file.in_stages:
        same, difference = _trained(a, b)
        arguments: tuple[ArgumentRow, ...] = ()
    else:
        same, difference = _programs(a, b)
        arguments = _arguments(a, b)
    return Comparison(
        _side(a), _side(b), same, difference, _collectives(a, b), arguments,
        changes(a.collectives, b.collectives, MOST_CHANGES),
    )  # fmt: skip


def _more(seconds: float, step_s: float) -> str:
    if abs(seconds) < 1e-4 * step_s:
        return "the same"
    return f"{seconds_text(abs(seconds))} {'less' if seconds < 0 else 'more'}"


def _trained(a: Plan, b: Plan) -> tuple[bool, str]:
    """Whether two plans, one of them in stages, train the same parameters."""
    left, right = _parameters(a), _parameters(b)
    # no stage reads what the loss does not
    less, more = (left, right) if a.file.in_stages else (right, left)
    if left == right or (less <= more and not (a.file.in_stages and b.file.in_stages)):
        return True, "stages are split each on its own mesh"
    some = ", ".join(sorted(left ^ right)[:3])
    return False, f"only one of them has the parameters {some}"


def _parameters(plan: Plan) -> set[str]:
    if plan.file.in_stages:
        return {name.partition("[")[0] for stage in plan.file.stages for name in stage.params}
    return {
        item.name.partition("/")[2] for item in plan.graph.inputs if item.role == "parameter"
    }  # fmt: skip


def _side(plan: Plan) -> ComparedPlan:
    file = plan.file
    whole = file.whole
    busiest = max(file.stages, key=lambda stage: stage.step_s)
    program = file.programs[busiest.program]
    return ComparedPlan(
        name=whole.name,
        cluster=plan.cluster.name,
        devices=sum(file.groups),
        mesh={"stages": len(file.stages)} if file.in_stages else dict(program.mesh),
        origin="pipeline" if file.in_stages else program.origin,
        microbatches=whole.microbatches,
        schedule=file.schedule,
        step_s=whole.step_s,
        compute_s=program.compute_s,
        communication_s=program.communication_s,
        exposed_s=program.exposed_s,
        peak_bytes=file.peak_bytes,
        limit_bytes=whole.limit_bytes,
        lower_bound_s=whole.lower_bound_s,
        gap=plan.gap,
        stop=plan.stop.value,
    )


def _programs(a: Plan, b: Plan) -> tuple[bool, str]:
    """Whether the programs are one, and how they differ."""
    if a.program.graph_digest == b.program.graph_digest:
        return True, ""
    if a.microbatches != b.microbatches and _surface(a) == _surface(b):
        return True, f"the step runs {a.microbatches} and {b.microbatches} micro-batches"
    return False, differences(a.graph, b.graph)


def _surface(plan: Plan) -> tuple[object, ...]:
    """What stays the same when a training step is cut into other micro-batches."""
    graph: Graph = plan.graph
    return plan.program.name, graph.inputs, len(graph.outputs)


def _collectives(a: Plan, b: Plan) -> tuple[KindRow, ...]:
    kinds = sorted({row.kind for plan in (a, b) for row in plan.collectives})
    rows = [
        KindRow(kind, _total(kind, a.collectives), _total(kind, b.collectives)) for kind in kinds
    ]
    return tuple(sorted(rows, key=lambda row: (-max(row.a.seconds, row.b.seconds), row.kind)))


def _total(kind: str, rows: Sequence[Collective]) -> Total:
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
