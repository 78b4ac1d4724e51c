"""The plan of one program: a record of data only, and the rows that it is made of."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ir import IRError, Mesh, Sharding, parse_sharding
from ir.analysis import Decisions, Site

from ..common.errors import PlanError

Seconds = Annotated[float, Meta(ge=0.0, le=1e15)]
Bytes = Annotated[float, Meta(ge=0.0, le=1e24)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Setting = Annotated[int, Meta(ge=1, le=1_000_000_000_000)]
Position = Annotated[int, Meta(ge=0, le=10**9)]
Axis = Annotated[str, Meta(min_length=1, max_length=40)]
Place = tuple[Position, ...]


class BaselineRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step_s: Seconds
    peak_bytes: Bytes
    fits: bool
    mesh: str


class CandidateRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another plan that the search found: the best one on its mesh."""

    mesh: str
    step_s: Seconds
    peak_bytes: Bytes


class CollectiveRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    axes: tuple[Axis, ...]
    group_size: Count
    bytes: Bytes
    count: Annotated[float, Meta(ge=0.0, le=1e15)]
    seconds: Seconds
    cause: str
    exposed_s: Seconds  # the part of `seconds` in which compute waits or is slowed down


class OpRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    place: Place
    roles: tuple[str, ...]


class ValueRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    place: Place
    number: Position
    sharding: str


class SiteRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A site of a reshard beside which a product runs in parts: a collective matmul."""

    place: Place
    at: Annotated[str, Meta(pattern="^(operand|result|return)$")]
    position: Position


class ChunksRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A site of an exchange that runs in `count` chunks beside the products next to it."""

    place: Place
    at: Annotated[str, Meta(pattern="^(operand|result|return)$")]
    position: Position
    count: Count


class SubstitutionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule applied at all places that look alike.

    place: the first of them, in the program as the rows before left it: node and body for every
        level, then the node of the rule's first output, then which reading of it.
    count: how often it was applied.
    """

    rule: Annotated[str, Meta(min_length=1, max_length=80)]
    place: Place
    count: Count


class RecomputedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Values of a body that are computed again, by number in the program that keeps everything."""

    place: Place
    numbers: tuple[Position, ...]


class PaddedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A dimension that is padded, with all that belong to it, in the program before this row.

    place, number, dim: body, number of a value in it, dimension.
    was, size: its elements before and after.
    parts: of which sizes are multiples, with the dimensions that differ from this one by borders; 0
        without these.
    """

    place: Place
    number: Position
    dim: Position
    was: Count
    size: Count
    parts: Position = 0


class OrderedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A causal sequence that is in the order of zigzag, in the program with `sorted_blocks`.

    place, number, dim: body, number of a value in it, dimension.
    was: its elements.
    parts: of the order.
    """

    place: Place
    number: Position
    dim: Position
    was: Count
    parts: Count


class AttentionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Attention that the program writes out.

    line, what: file and line, and its mask, heads, sizes and type.
    why: it stays as it is written; empty if the kernel of the devices runs it.
    within, within_z: outputs then differ by at most (within + within_z Z) max|v|, where Z is the
        largest score or bias.
    """

    line: str
    what: str
    why: str
    within: Annotated[float, Meta(ge=0.0)] = 0.0
    within_z: Annotated[float, Meta(ge=0.0)] = 0.0


class ProgramPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is decided of one program, and what it is predicted to cost; see `docs/plan-file.md`."""

    name: str
    graph_digest: str
    graph: str
    cluster: dict[str, Any]
    mesh: Annotated[tuple[tuple[Axis, Count], ...], Meta(min_length=1, max_length=8)]
    step_s: Seconds
    compute_s: Seconds
    communication_s: Seconds
    exposed_s: Seconds  # the part of communication in which compute waits or is slowed down
    overlap: bool  # whether collectives may run beside compute
    collective_matmul: bool  # whether products may run in parts beside their collectives
    # of XLA's GPU compiler, set whatever the user's environment says
    compiler_options: dict[
        Annotated[str, Meta(pattern="^xla_gpu_[a-z0-9_]{1,80}$")], bool | Setting
    ]
    peak_bytes: Bytes
    argument_bytes: Bytes
    limit_bytes: Bytes
    room_bytes: Bytes  # no reshard passes a state that needs more on a device
    lower_bound_s: Seconds
    decided_ops: Position  # operations decided apart from each other; repeated ones follow
    stop: Annotated[str, Meta(pattern="^(OPTIMAL|GAP|TIME_LIMIT|INTERRUPTED)$")]
    origin: str
    microbatches: Count
    emission: Annotated[str, Meta(pattern="^(shard_map|constraints)$")]
    loss_reduction: Annotated[str, Meta(pattern="^(auto|mean|sum)$")]
    donated: tuple[Position, ...]
    ties: tuple[tuple[Position, Position], ...]
    roles: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    pins: tuple[tuple[str, str], ...]
    forbidden: tuple[tuple[str, int], ...]
    shardings: Annotated[
        str, Meta(pattern="^(warn|pin)$")
    ]  # those that the program is written with
    baselines: dict[str, BaselineRow]
    collectives: tuple[CollectiveRow, ...]
    substitutions: tuple[SubstitutionRow, ...]
    traced_digest: str  # of the graph before substitutions; empty if there are none
    warnings: tuple[str, ...]
    ops: tuple[OpRow, ...]
    values: tuple[ValueRow, ...]
    in_parts: tuple[SiteRow, ...]
    candidates: tuple[CandidateRow, ...]
    # what the backward pass computes again; absent if that is as the program is written
    recomputed: tuple[RecomputedRow, ...] | None = None
    padded: tuple[PaddedRow, ...] = ()  # dimensions that do not divide, in order
    ordered: tuple[OrderedRow, ...] = ()  # causal sequences in the order of zigzag
    sorted_blocks: Position = 0  # within which rows are sorted, in the program with `padded`; or 0
    # whether what the program sends to the host's memory may be there, and how much of it is, for
    # each device
    offload: Annotated[str, Meta(pattern="^(auto|never)$")] = "never"
    host_bytes: Bytes = 0.0
    # what of the values that are kept for the backward pass waits on the host, of those that the
    # planner chose: in the program with `recomputed`
    hosted: tuple[RecomputedRow, ...] = ()
    host_states: tuple[Position, ...] = ()  # arguments that the host holds from step to step
    attention: tuple[AttentionRow, ...] = ()  # that the program writes out
    in_chunks: tuple[ChunksRow, ...] = ()  # exchanges beside products


def fits(plan: ProgramPlan) -> bool:
    """Whether the peak is within the limit, but for rounding."""
    return plan.peak_bytes <= plan.limit_bytes * (1 + 1e-9)


def rows_of(decisions: Decisions) -> tuple[tuple[OpRow, ...], tuple[ValueRow, ...]]:
    """Decisions in a stable order."""
    ops = tuple(OpRow(place, roles) for place, roles in sorted(decisions.ops.items()))
    each = {id(state): state for state in decisions.values.values()}
    shown = {key: str(state) for key, state in each.items()}
    values = tuple(
        ValueRow(place, number, shown[id(state)])
        for (place, number), state in sorted(decisions.values.items())
    )
    return ops, values


def site_rows(decisions: Decisions) -> tuple[SiteRow, ...]:
    """Sites of collective matmuls in a stable order."""
    return tuple(SiteRow(*site) for site in sorted(decisions.in_parts))


def chunks_rows(decisions: Decisions) -> tuple[ChunksRow, ...]:
    """Sites of exchanges in chunks in a stable order."""
    return tuple(ChunksRow(*site, count) for site, count in sorted(decisions.chunks.items()))


def decisions_of(plan: ProgramPlan, where: str) -> Decisions:
    """Decisions of a program's plan.

    Raises:
        PlanError: if a sharding or a mesh in it is malformed.
    """
    try:
        mesh = Mesh(plan.mesh)
        states: dict[str, Sharding] = {}

        def state(text: str) -> Sharding:
            if text not in states:
                states[text] = parse_sharding(text)
                unknown = {*states[text].axes, *(a for a, _ in states[text].partial)} - {
                    *mesh.names
                }
                if unknown:
                    raise IRError(f"{text} uses {sorted(unknown)}, the mesh has {mesh.names}")
            return states[text]

        return Decisions(
            mesh,
            {row.place: row.roles for row in plan.ops},
            {(row.place, row.number): state(row.sharding) for row in plan.values},
            tuple(state(text) for text in plan.inputs),
            tuple(state(text) for text in plan.outputs),
            frozenset(Site(row.place, row.at, row.position) for row in plan.in_parts),
            {Site(row.place, row.at, row.position): row.count for row in plan.in_chunks},
        )
    except IRError as error:
        raise PlanError(
            str(error), kind="plan-file", where=where, remedy="make the plan again"
        ) from error
