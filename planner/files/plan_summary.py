"""A plan as `meshwright plan --json` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .plan_file import Pipeline, PlanFile
from .program_plan import ProgramPlan


def summary_of(
    file: PlanFile,
    seconds: Mapping[str, float],
    glance: Mapping[str, Any],
    *,
    cached: bool = False,
) -> dict[str, Any]:
    """The contract of `meshwright plan --json`.

    Args:
        file: the plan.
        seconds: spent on planning, by pass.
        glance: the first figures of the plan.
        cached: the plan was found in the plan store.
    """
    whole = file.whole
    return {
        "step_s": whole.step_s, "peak_bytes": file.peak_bytes, "fits": file.fits,
        "lower_bound_s": whole.lower_bound_s, "gap": file.gap, "stop": file.stop.value,
        "mesh": dict(file.members[0].mesh), "microbatches": whole.microbatches,
        "schedule": file.schedule,
        "stages": [
            {"layers": list(s.layers), "devices": list(s.devices), "mesh": dict(program.mesh),
             "step_s": s.step_s, "peak_bytes": s.peak_bytes, "recompute": s.recompute}
            for s, program in zip(file.stages, file.members, strict=True)
        ],
        "baselines": {
            name: {"step_s": b.step_s, "peak_bytes": b.peak_bytes, "fits": b.fits,
                   "mesh": b.mesh}
            for name, b in whole.baselines.items()
        },
        "collectives": [
            {"kind": c.kind, "axes": list(c.axes), "group_size": c.group_size,
             "bytes": c.bytes, "count": c.count, "seconds": c.seconds, "cause": c.cause,
             "exposed_s": c.exposed_s}
            for c in file.collectives
        ],
        "substitutions": [{"rule": r, "count": n} for r, n in file.substitutions.items()],
        "warnings": list(whole.warnings), "seconds": dict(seconds),
        **(_of_stages(whole) if isinstance(whole, Pipeline) else _of_program(whole)),
        "at_a_glance": dict(glance), "cluster": whole.cluster.get("name", ""), "name": whole.name,
        "limit_bytes": whole.limit_bytes, "cached": cached,
    }  # fmt: skip


def _of_program(program: ProgramPlan) -> dict[str, Any]:
    return {
        "compute_s": program.compute_s, "communication_s": program.communication_s,
        "exposed_s": program.exposed_s, "origin": program.origin,
        "host_bytes": program.host_bytes,
        "operations": len(program.ops), "decided_operations": program.decided_ops,
    }  # fmt: skip


def _of_stages(pipeline: Pipeline) -> dict[str, Any]:
    return {"bubble": pipeline.bubble, "origin": "pipeline"}
