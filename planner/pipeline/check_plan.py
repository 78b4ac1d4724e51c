"""Checks that a plan file is consistent: its stages, schedule and programs fit each other.

A plan file may come from anyone. After these checks a plan can be printed, explained, bound and
compiled without meeting a name, place or number that its own graphs and meshes do not have.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from costmodel import Cluster
from ir import IRError, Mesh

from ..common.errors import PlanError
from ..files.check import check_program
from ..files.plan_file import AS_WRITTEN, Pipeline, PlanFile, one_stage
from ..files.program_plan import ProgramPlan
from .divide.simulated import table_of
from .schedule import turns_of


def check_plan(file: PlanFile, where: str) -> None:
    """Checks that the parts of a plan file, its stages' programs included, agree.

    Raises:
        PlanError: names the parts of the file that contradict each other.
    """
    for program in file.programs:
        check_program(program, where)
    try:
        if file.pipeline is None:
            _check_one_stage(file)
        else:
            _check_stages(file, file.pipeline)
    except (IRError, ValueError) as error:
        raise PlanError(
            f"is not a sound plan: {error}", kind="plan-file", where=where,
            remedy="make the plan again with this version",
        ) from error  # fmt: skip


def _check_one_stage(file: PlanFile) -> None:
    """The one stage of a plan without a pipeline has the figures of its program."""
    if len(file.stages) != 1 or len(file.programs) != 1:
        raise IRError(f"it has {len(file.stages)} stages of {len(file.programs)} programs, and no "
                      "schedule")  # fmt: skip
    (stage,), (program,) = file.stages, file.programs
    if stage.peak_bytes != program.peak_bytes:
        raise IRError(f"its peak is {stage.peak_bytes} bytes, its program's {program.peak_bytes}")
    (expected,) = one_stage(program, stage.layers[1]).stages
    if stage != expected:
        raise IRError(f"its stage is {stage}, its program's {expected}")


def _check_stages(file: PlanFile, pipeline: Pipeline) -> None:
    count = len(file.stages)
    cuts = file.cuts
    follow = all(a.layers[1] == b.layers[0] for a, b in pairwise(file.stages))
    if not follow or list(cuts) != sorted(set(cuts)) or cuts[0] != 0:
        raise IRError(f"its cuts {cuts} do not rise from 0")
    if any(stage.program >= len(file.programs) for stage in file.stages):
        raise IRError("a stage refers to a plan that the file does not contain")
    if any(stage.cost is None or stage.recompute == AS_WRITTEN for stage in file.stages):
        raise IRError("a stage has no cost, or no kind of recomputation")
    if count % pipeline.chunks:
        raise IRError(f"its {count} stages do not put {pipeline.chunks} on each group of devices")
    spans = tuple(pairwise(accumulate(file.groups, initial=0)))
    group = turns_of(pipeline.schedule, pipeline.chunks).group(count)
    if [spans[g] for g in group] != [stage.devices for stage in file.stages]:
        raise IRError("its stages do not follow each other on the devices")
    devices = Cluster.from_dict(pipeline.cluster, where="key `cluster`").num_devices
    if sum(file.groups) > devices:
        raise IRError(f"its stages have {sum(file.groups)} devices, the cluster {devices}")
    if pipeline.lower_bound_s > pipeline.step_s:
        raise IRError(
            f"its step of {pipeline.step_s} s is below its bound, {pipeline.lower_bound_s} s"
        )
    table_of(pipeline.schedule, pipeline.microbatches, file.recompute, pipeline.chunks)
    for s, (program, size) in enumerate(zip(file.members, file.sizes, strict=True)):
        if Mesh(program.mesh).num_devices != size:
            raise IRError(f"the mesh of stage {s} does not have its {size} devices")
        _check_hosted(s, file.recompute[s], program)


def _check_hosted(s: int, kind: str, program: ProgramPlan) -> None:
    """A stage has values on the host where it chooses them, and there alone."""
    if bool(program.hosted) != (program.host_bytes > 0):
        raise IRError(
            f"stage {s} chooses {len(program.hosted)} rows of values for the host, whose memory "
            f"holds {program.host_bytes} bytes"
        )
    if program.hosted and (kind != "chosen" or program.offload == "never"):
        raise IRError(f"stage {s} has values on the host, but chooses none")
