"""The plan file: JSON that is data only, validated strictly, written all or nothing."""

from __future__ import annotations

import importlib.metadata
import shlex
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ir import Mesh

from ..common.errors import PlanError
from ..common.stop import Stop
from ..common.units_text import printable
from ..common.version import VERSION
from ..common.write_files import reason, what_it_is, write_files
from .program_plan import BaselineRow, Bytes, CollectiveRow, Count, Position, ProgramPlan, Seconds
from .seal import opened, sealed

FORMAT = "meshwright-plan"
FILE_VERSION = 8
OLD_PIPELINE_FORMAT = "meshwright-pipeline"  # of plans in stages, to version 3
LARGEST_BYTES = 1 << 30
AS_WRITTEN = "as written"
ONE_PROGRAM = "one program"  # the baseline of a plan in stages that is the best one without stages
ROUNDING = 1e-9  # relative


class StageCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds and bytes of a stage on each of its devices, of one micro-batch.

    once_s: of a step beside its micro-batches.
    held_bytes: with one micro-batch in flight; activation_bytes: what each further one adds,
        boundary_bytes: the same if the forward pass of the stage is run again.
    sent_bytes: of values that go to the next stage.
    static_bytes: the part of `held_bytes` for parameters, states and sums of gradients; None in
        files of earlier releases, where all that is held beside activations counts as such.
    """

    forward_s: Seconds
    input_gradient_s: Seconds
    weight_gradient_s: Seconds
    once_s: Seconds
    held_bytes: Bytes
    activation_bytes: Bytes
    boundary_bytes: Bytes
    sent_bytes: Bytes
    static_bytes: Bytes | None = None


class StageRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Consecutive layers on one mesh of devices.

    layers: first slot of the program, and the one after the last.
    devices: first device, and the one after the last.
    step_s: busy seconds in a step.
    recompute: as written, in a plan of one program; none; selective or full, layer by layer; stage,
        all of it at once; chosen, value by value, as `recomputed` of its program says.
    program: number of its plan among `programs`; equal stages share one.
    params: names of its parameters, in the order of its plan's; a part of a stack of layers says
        which. Empty in a plan of one program, as is `cost`.
    """

    layers: tuple[Position, Position]
    devices: tuple[Position, Position]
    step_s: Seconds
    peak_bytes: Bytes
    recompute: Annotated[str, Meta(pattern="^(as written|none|selective|full|stage|chosen)$")]
    program: Position = 0
    params: tuple[str, ...] = ()
    cost: StageCost | None = None


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How stages make a step.

    bubble: share of the step in which devices are idle.
    chunks: stages on each group of devices, in the order of the schedule.
    stop: why the search ended.
    no_single: why no plan without stages is among the baselines; empty if one is, and in files of
        earlier releases.
    """

    name: str
    cluster: dict[str, Any]
    step_s: Seconds
    lower_bound_s: Seconds
    bubble: Annotated[float, Meta(ge=0.0, le=1.0)]
    limit_bytes: Bytes
    microbatches: Count
    schedule: str
    chunks: Count
    loss_reduction: Annotated[str, Meta(pattern="^(auto|mean|sum)$")]
    baselines: dict[str, BaselineRow]
    warnings: tuple[str, ...]
    stop: Annotated[str, Meta(pattern="^(GAP|TIME_LIMIT|INTERRUPTED)$")] = Stop.GAP.name
    no_single: str = ""


class PlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a plan says; see `docs/plan-file.md`.

    stages: in the order of the program; one, if the plan is of one program.
    programs: plans of the distinct programs that stages run.
    pipeline: how the stages make a step; None if the plan is of one program.
    """

    format: str
    version: int
    planner: str
    jax: str
    stages: Annotated[tuple[StageRow, ...], Meta(min_length=1)]
    programs: Annotated[tuple[ProgramPlan, ...], Meta(min_length=1)]
    pipeline: Pipeline | None

    @property
    def whole(self) -> ProgramPlan | Pipeline:
        """What is said of the step as a whole: its name, cluster, time, bound and baselines."""
        return self.pipeline or self.programs[0]

    @property
    def in_stages(self) -> bool:
        """Whether the plan has several stages, or one program otherwise."""
        return self.pipeline is not None

    @property
    def joined(self) -> Pipeline:
        """How the stages make a step.

        Raises:
            PlanError: if the plan is of one program.
        """
        if self.pipeline is None:
            raise PlanError(
                "is a plan of one program, it has no schedule of stages", kind="bad-plan",
                where="plan", remedy="plan with pipeline= and optimizer=",
            )  # fmt: skip
        return self.pipeline

    @property
    def schedule(self) -> str:
        """Name of the schedule that stages run in; none in a plan of one program."""
        return "none" if self.pipeline is None else self.pipeline.schedule

    @property
    def gap(self) -> float:
        """(step - bound) / step."""
        step_s = self.whole.step_s
        return max(0.0, (step_s - self.whole.lower_bound_s) / step_s) if step_s > 0 else 0.0

    @property
    def stop(self) -> Stop:
        """Why the search ended."""
        return Stop[self.whole.stop]

    @property
    def peak_bytes(self) -> float:
        """Peak of the fullest device."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit, but for rounding."""
        return self.peak_bytes <= self.whole.limit_bytes * (1 + ROUNDING)

    @property
    def members(self) -> tuple[ProgramPlan, ...]:
        """The plan of every stage's program."""
        return tuple(self.programs[stage.program] for stage in self.stages)

    @property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """Every collective inside the stages, on one device of each."""
        return tuple(row for program in self.members for row in program.collectives)

    @property
    def substitutions(self) -> dict[str, int]:
        """How often each rule was applied in all stages, in the order of first use."""
        found: Counter[str] = Counter()
        for program in self.members:
            for row in program.substitutions:
                found[row.rule] += row.count
        return dict(found)

    @property
    def cuts(self) -> tuple[int, ...]:
        """First slot of every stage, and the number of slots."""
        return (*(stage.layers[0] for stage in self.stages), self.stages[-1].layers[1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices of every stage."""
        return tuple(end - first for first, end in (stage.devices for stage in self.stages))

    @property
    def groups(self) -> tuple[int, ...]:
        """Devices of every group; the first stages are on one each, in order."""
        return self.sizes[: len(self.stages) // (self.pipeline.chunks if self.pipeline else 1)]

    @property
    def recompute(self) -> tuple[str, ...]:
        """What every stage computes again."""
        return tuple(stage.recompute for stage in self.stages)

    @property
    def costs(self) -> tuple[StageCost, ...]:
        """What a micro-batch costs in every stage of a pipeline."""
        return tuple(stage.cost for stage in self.stages if stage.cost is not None)


class _Written(PlanFile, frozen=True, forbid_unknown_fields=True):
    seal: Annotated[str, Meta(max_length=40)]


def file_of(
    stages: tuple[StageRow, ...], programs: tuple[ProgramPlan, ...], pipeline: Pipeline | None
) -> PlanFile:
    """A plan as this version writes it."""
    jax = importlib.metadata.version("jax")
    return PlanFile(FORMAT, FILE_VERSION, VERSION, jax, stages, programs, pipeline)


def one_stage(program: ProgramPlan, nodes: int) -> PlanFile:
    """The plan of one program, which is its only stage.

    Args:
        program: the plan of the program.
        nodes: number of nodes of the program at its top level.
    """
    devices = Mesh(program.mesh).num_devices
    stage = StageRow((0, nodes), (0, devices), program.step_s, program.peak_bytes, AS_WRITTEN)
    return file_of((stage,), (program,), None)


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


class _ClusterName(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(max_length=200)] = ""


class _Head(msgspec.Struct):
    format: Annotated[str, Meta(max_length=40)] = ""
    version: Annotated[int, Meta(ge=0, le=10**6)] = 0
    planner: Annotated[str, Meta(max_length=40)] = ""
    name: Annotated[str, Meta(max_length=200)] = ""
    cluster: _ClusterName = _ClusterName()


def _check_head(data: bytes, where: str) -> None:
    """Checks format and version before anything else, for a message that helps."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"is not a plan, or is cut short: {error}", kind="plan-file", where=where,
            remedy="make the plan again",
        ) from error  # fmt: skip
    if head.format not in (FORMAT, OLD_PIPELINE_FORMAT):
        raise PlanError(
            f"has format {head.format!r}, expected {FORMAT!r}", kind="plan-file", where=where,
            remedy="pass a file that `meshwright plan -o` or `Plan.save` wrote",
        )  # fmt: skip
    if (head.format, head.version) != (FORMAT, FILE_VERSION):
        raise PlanError(
            f"has plan-file version {head.version} (written by {head.planner!r}), this "
            f"is version {FILE_VERSION} of planner {VERSION}", kind="plan-file", where=where,
            remedy=f"make the plan again: {_command(head, where)}",
        )  # fmt: skip


def _command(head: _Head, where: str) -> str:
    """The command that makes the plan of an older file anew."""
    words = ["meshwright", "plan", f"FILE.py:{head.name or 'NAME'}", "--cluster",
             head.cluster.name or "CLUSTER", "-o", where]  # fmt: skip
    return " ".join(printable(shlex.quote(word)) for word in words)
