"""Whether the file of a pipeline is sound: its stages, schedule and plans fit each other."""

from __future__ import annotations

from costmodel import Cluster
from ir import IRError, Mesh

from ..common.errors import PlanError
from ..files.check import check_file
from .divide.simulated import table_of
from .pipeline_file import PipelineFile


def _check_sums(file: PipelineFile) -> None:
    devices = Cluster.from_dict(file.cluster, where="key `cluster`").num_devices
    if sum(file.groups) > devices:
        raise IRError(f"its stages have {sum(file.groups)} devices, the cluster {devices}")
    if file.lower_bound_s > file.step_s:
        raise IRError(f"its step of {file.step_s} s is below its bound, {file.lower_bound_s} s")


def check_pipeline(file: PipelineFile, where: str) -> None:
    """Checks a pipeline against itself, and the plan of every stage.

    Raises:
        PlanError: says what in the file contradicts what.
    """
    count = len(file.sizes)
    rows = (
        file.stage_s, file.peak_bytes, file.members, file.recompute, file.costs, file.params
    )  # fmt: skip
    lengths = {len(file.cuts) - 1, *map(len, rows)}
    try:
        if lengths != {count} or not count:
            raise IRError(f"it has {count} stages, and other numbers of cuts, costs or plans")
        if list(file.cuts) != sorted(set(file.cuts)) or file.cuts[0] != 0:
            raise IRError(f"its cuts {file.cuts} do not rise from 0")
        if any(m >= len(file.plans) for m in file.members):
            raise IRError("a stage names a plan that is not there")
        if count % file.chunks or file.groups * file.chunks != file.sizes:
            raise IRError(f"its {count} stages are not {file.chunks} on each group of devices")
        _check_sums(file)
        table_of(file.schedule, file.microbatches, file.recompute, file.chunks)
        for s, m in enumerate(file.members):
            if Mesh(file.plans[m].mesh).num_devices != file.sizes[s]:
                raise IRError(f"the mesh of stage {s} has not its {file.sizes[s]} devices")
    except (IRError, ValueError) as error:
        raise PlanError(
            f"is not a sound plan: {error}", kind="plan-file", where=where,
            remedy="make the plan again with this version",
        ) from error  # fmt: skip
    for plan in file.plans:
        check_file(plan, where)
