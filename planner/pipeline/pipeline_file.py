"""The file of a pipeline: what joins its stages, and a plan file for each of them."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..common.errors import PlanError
from ..common.version import VERSION
from ..common.write_files import write_files
from ..files.plan_file import BaselineRow, Bytes, Count, PlanFile, Position, Seconds, bytes_of
from ..files.seal import opened, sealed
from .divide.simulated import groups_of

PIPELINE_FORMAT = "meshwright-pipeline"
PIPELINE_VERSION = 3


class StageCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds and bytes of a stage on each of its devices, of one micro-batch.

    once_s: of a step beside its micro-batches.
    held_bytes: with one micro-batch in flight; activation_bytes: what each further one adds,
        boundary_bytes: the same if the forward pass of the stage is run again.
    sent_bytes: of values that go to the next stage.
    """

    forward_s: Seconds
    input_gradient_s: Seconds
    weight_gradient_s: Seconds
    once_s: Seconds
    held_bytes: Bytes
    activation_bytes: Bytes
    boundary_bytes: Bytes
    sent_bytes: Bytes


class PipelineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a plan in stages says.

    cuts: first slot of every stage, and the number of slots.
    sizes: devices of every stage.
    recompute: of every stage: none; selective or full, layer by layer; stage, all of it at once.
    params: names of each stage's parameters, in the order of its plan's; a part of a stack of
        layers says which.
    chunks: stages on each group of devices: stage s is on group s mod p, all of which are first
        in `sizes`.
    members: for each stage the number of its plan among `plans`; equal stages share one.
    """

    format: str
    version: int
    planner: str
    name: str
    cluster: dict[str, Any]
    step_s: Seconds
    lower_bound_s: Seconds
    bubble: Annotated[float, Meta(ge=0.0, le=1.0)]
    limit_bytes: Bytes
    microbatches: Count
    schedule: str
    recompute: tuple[Annotated[str, Meta(pattern="^(none|selective|full|stage)$")], ...]
    loss_reduction: Annotated[str, Meta(pattern="^(auto|mean|sum)$")]
    cuts: tuple[Position, ...]
    sizes: tuple[Count, ...]
    stage_s: tuple[Seconds, ...]
    peak_bytes: tuple[Bytes, ...]
    costs: tuple[StageCost, ...]
    params: tuple[tuple[str, ...], ...]
    members: tuple[Position, ...]
    plans: tuple[PlanFile, ...]
    baselines: dict[str, BaselineRow]
    warnings: tuple[str, ...]
    chunks: Count = 1

    @property
    def groups(self) -> tuple[int, ...]:
        """Devices of every group; stage s is on group s mod their number."""
        return groups_of(self.sizes, self.chunks)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First device of every stage, and the one after its last."""
        found = tuple(pairwise(accumulate(self.groups, initial=0)))
        return found * self.chunks


class _Written(PipelineFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    seal: Annotated[str, Meta(max_length=40)]


class _Head(msgspec.Struct):
    format: Annotated[str, Meta(max_length=40)] = ""
    version: Annotated[int, Meta(ge=0, le=10**6)] = 0


def is_pipeline(path: str | Path) -> bool:
    """Whether a file says that it is a pipeline; files that cannot be read are not."""
    try:
        return msgspec.json.decode(bytes_of(path, str(path)), type=_Head).format == PIPELINE_FORMAT
    except (ValueError, RecursionError):  # an error of ours is a ValueError too
        return False


def read_pipeline(path: str | Path) -> PipelineFile:
    """Reads a pipeline and checks its form.

    Raises:
        PlanError: if it is malformed, of another version or changed since it was written.
    """
    again = "make the plan again with this version"
    try:
        data = bytes_of(path, str(path))
        head = msgspec.json.decode(data, type=_Head)
        if head.version != PIPELINE_VERSION:
            raise msgspec.ValidationError(
                f"version {head.version}, expected {PIPELINE_VERSION} of planner {VERSION}"
            )
        return opened(data, _Written, PipelineFile, str(path))
    except PlanError:
        raise
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"is not a valid pipeline: {error}", kind="plan-file", where=str(path), remedy=again
        ) from error


def write_pipeline(path: str | Path, file: PipelineFile) -> None:
    """Writes a pipeline, all or nothing.

    Raises:
        PlanError: if the file cannot be written.
    """
    write_files([(Path(path), sealed(file, str(path)))], kind="plan-file")
