"""A plan as `meshwright plan --json` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..common.stop import Stop
from .plan_file import PlanFile


def fits(f: PlanFile) -> bool:
    """Whether the peak is within the limit, but for rounding."""
    return f.peak_bytes <= f.limit_bytes * (1 + 1e-9)


def counted(f: PlanFile) -> dict[str, int]:
    """How often each rule was applied, in the order of first use."""
    found: dict[str, int] = {}
    for row in f.substitutions:
        found[row.rule] = found.get(row.rule, 0) + row.count
    return found


def summary_of(
    f: PlanFile, gap: float, seconds: Mapping[str, float], *, cached: bool = False
) -> dict[str, Any]:
    """The contract of `meshwright plan --json`."""
    return {
        "step_s": f.step_s, "peak_bytes": f.peak_bytes, "fits": fits(f),
        "lower_bound_s": f.lower_bound_s, "gap": gap, "stop": Stop[f.stop].value,
        "mesh": dict(f.mesh), "microbatches": f.microbatches, "schedule": f.schedule,
        "stages": [
            {"layers": list(s.layers), "devices": list(s.devices), "mesh": s.mesh,
             "step_s": s.step_s, "peak_bytes": s.peak_bytes, "recompute": s.recompute}
            for s in f.stages
        ],
        "baselines": {
            name: {"step_s": b.step_s, "peak_bytes": b.peak_bytes, "fits": b.fits,
                   "mesh": b.mesh}
            for name, b in f.baselines.items()
        },
        "collectives": [
            {"kind": c.kind, "axes": list(c.axes), "group_size": c.group_size,
             "bytes": c.bytes, "count": c.count, "seconds": c.seconds, "cause": c.cause}
            for c in f.collectives
        ],
        "substitutions": [{"rule": r, "count": n} for r, n in counted(f).items()],
        "warnings": list(f.warnings), "seconds": dict(seconds),
        "compute_s": f.compute_s, "communication_s": f.communication_s,
        "overlapped_s": f.overlapped_s,
        "origin": f.origin, "cluster": f.cluster.get("name", ""), "name": f.name,
        "limit_bytes": f.limit_bytes, "operations": len(f.ops),
        "decided_operations": f.decided_ops, "cached": cached,
    }  # fmt: skip
