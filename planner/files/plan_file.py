"""The plan file: JSON that is data only, validated strictly, written all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ir import IRError, Mesh, Sharding, parse_sharding
from ir.analysis import Decisions

from ..common.errors import PlanError
from ..common.version import VERSION
from ..common.write_files import reason, what_it_is, write_files
from .seal import opened, sealed

FORMAT = "meshwright-plan"
FILE_VERSION = 3
LARGEST_BYTES = 1 << 30


Seconds = Annotated[float, Meta(ge=0.0, le=1e15)]
Bytes = Annotated[float, Meta(ge=0.0, le=1e24)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
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


class StageRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    layers: tuple[Position, Position]
    devices: tuple[Position, Position]
    mesh: dict[Axis, Count]
    step_s: Seconds
    peak_bytes: Bytes
    recompute: str


class OpRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    place: Place
    roles: tuple[str, ...]


class ValueRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    place: Place
    number: Position
    sharding: str


class SubstitutionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule applied at all places that look alike.

    place: the first of them, in the program as the rows before left it: node and body for every
        level, then the node of the rule's first output, then which reading of it.
    count: how often it was applied.
    """

    rule: Annotated[str, Meta(min_length=1, max_length=80)]
    place: Place
    count: Count


class PlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a plan says; see `docs/plan-file.md`."""

    format: str
    version: int
    planner: str
    jax: str
    name: str
    graph_digest: str
    graph: str
    cluster: dict[str, Any]
    mesh: Annotated[tuple[tuple[Axis, Count], ...], Meta(min_length=1, max_length=8)]
    step_s: Seconds
    compute_s: Seconds
    communication_s: Seconds
    overlapped_s: Seconds  # with collectives beside compute; 0 if not predicted
    peak_bytes: Bytes
    argument_bytes: Bytes
    limit_bytes: Bytes
    room_bytes: Bytes  # no reshard passes a state that needs more on a device
    lower_bound_s: Seconds
    decided_ops: Position  # operations decided apart from each other; repeated ones follow
    stop: Annotated[str, Meta(pattern="^(OPTIMAL|GAP|TIME_LIMIT)$")]
    origin: str
    microbatches: Count
    schedule: str
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
    stages: tuple[StageRow, ...]
    baselines: dict[str, BaselineRow]
    collectives: tuple[CollectiveRow, ...]
    substitutions: tuple[SubstitutionRow, ...]
    traced_digest: str  # of the graph before substitutions; empty if there are none
    warnings: tuple[str, ...]
    ops: tuple[OpRow, ...]
    values: tuple[ValueRow, ...]
    candidates: tuple[CandidateRow, ...]


class _Written(PlanFile, frozen=True, forbid_unknown_fields=True):
    seal: Annotated[str, Meta(max_length=40)]


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


def decisions_of(file: PlanFile, where: str) -> Decisions:
    """Decisions that a file holds.

    Raises:
        PlanError: if a sharding or a mesh in it is malformed.
    """
    try:
        mesh = Mesh(file.mesh)
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
            {row.place: row.roles for row in file.ops},
            {(row.place, row.number): state(row.sharding) for row in file.values},
            tuple(state(text) for text in file.inputs),
            tuple(state(text) for text in file.outputs),
        )
    except IRError as error:
        raise PlanError(
            str(error), kind="plan-file", where=where, remedy="make the plan again"
        ) from error


def write(path: str | Path, file: PlanFile) -> None:
    """Writes a plan, all of it or nothing.

    Raises:
        PlanError: if the folder cannot be written, or `path` is no plain file.
    """
    write_files([(Path(path), encoded(file, str(path)))], kind="plan-file")


def encoded(file: PlanFile, where: str = "plan") -> bytes:
    """The bytes of a plan file; the same plan gives the same ones.

    Raises:
        PlanError: if they could not be read again.
    """
    return sealed(file, where)


def read(path: str | Path) -> PlanFile:
    """Reads a plan and checks the form of its parts; nothing in it is executed.

    Raises:
        PlanError: if the file is missing, truncated, of another format or version, malformed or
            changed since it was written.
    """
    return decoded(bytes_of(path, str(path)), str(path))


def decoded(data: bytes, where: str) -> PlanFile:
    """The plan that some bytes hold; nothing in them is executed.

    Raises:
        PlanError: if they are truncated, of another format or version, malformed or changed.
    """
    again = "make the plan again with this version"
    _check_head(data, where)
    try:
        return opened(data, _Written, PlanFile, where)
    except PlanError:
        raise
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"is not a valid plan: {error}", kind="plan-file", where=where, remedy=again
        ) from error


def bytes_of(path: str | Path, where: str) -> bytes:
    """Contents of a file of a size that a plan may have.

    Raises:
        PlanError: if it cannot be read.
    """
    try:
        file = Path(path)
        if file.exists() and not file.is_file():
            raise OSError(0, what_it_is(file))
        size = file.stat().st_size
        if size > LARGEST_BYTES:
            raise OSError(0, f"it has {size} bytes, more than any plan")
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise PlanError(
            f"cannot be read: {reason(error)}", kind="plan-file", where=where,
            remedy="check the path",
        ) from error  # fmt: skip


class _Head(msgspec.Struct):
    format: Annotated[str, Meta(max_length=40)] = ""
    version: Annotated[int, Meta(ge=0, le=10**6)] = 0
    planner: Annotated[str, Meta(max_length=40)] = ""


def _check_head(data: bytes, where: str) -> None:
    """Format and version are looked at before anything else, for a message that helps."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"is not a plan, or is cut short: {error}", kind="plan-file", where=where,
            remedy="make the plan again",
        ) from error  # fmt: skip
    if head.format != FORMAT:
        raise PlanError(
            f"has format {head.format!r}, expected {FORMAT!r}", kind="plan-file", where=where,
            remedy="pass a file that `meshwright plan -o` or `Plan.save` wrote",
        )  # fmt: skip
    if head.version != FILE_VERSION:
        raise PlanError(
            f"has plan-file version {head.version} (written by {head.planner!r}), this "
            f"is version {FILE_VERSION} of planner {VERSION}", kind="plan-file", where=where,
            remedy="make the plan again, or install the planner that wrote it",
        )  # fmt: skip
