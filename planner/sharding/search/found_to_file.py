"""The outcome of a search as fields of a program's plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from costmodel import Cluster

from ...common.compiler_options import compiler_options
from ...common.options import Options
from ...files.program_plan import (
    BaselineRow,
    CandidateRow,
    CollectiveRow,
    chunks_rows,
    rows_of,
    site_rows,
)
from ..cost.account import Account
from ..cost.inside_ops import permutes
from .asked import may_offload
from .context import Candidate
from .over_meshes import SearchOutcome

ANY_BYTES = 1e18  # more than any device has; files hold no infinity


def outcome(
    found: SearchOutcome, cluster: Cluster, options: Options, limit_bytes: float
) -> dict[str, Any]:
    """Fields of `ProgramPlan` that the search decides; the program's own fields are the caller's.

    Args:
        found: outcome of the search.
        cluster: the cluster planned for.
        options: options of the search.
        limit_bytes: memory limit of a device.
    """
    best = found.best
    sums, mesh = best.account, best.mesh
    ops, values = rows_of(best.decisions)
    rings, copies = permutes(sums.inside, best.builder.cache.reshard)
    return {
        "cluster": cluster.to_dict(),
        "mesh": mesh.axes,
        "step_s": sums.step_s,
        "compute_s": sums.compute_s,
        "communication_s": sums.communication_s,
        "exposed_s": sums.exposed_s,
        "overlap": best.builder.overlap,
        "collective_matmul": options.in_parts,
        "in_parts": site_rows(best.decisions),
        "in_chunks": chunks_rows(best.decisions),
        "compiler_options": compiler_options(
            overlap=best.builder.overlap,
            copies=bool(best.decisions.in_parts) or copies,
            rings=rings,
            on_host=sums.host_bytes > 0,
        ),
        "peak_bytes": sums.peak_bytes,
        "argument_bytes": sums.argument_bytes,
        "offload": "auto" if may_offload(options, cluster) else "never",
        "host_bytes": sums.host_bytes,
        "limit_bytes": limit_bytes,
        "room_bytes": min(best.builder.cache.reshard.room_bytes, ANY_BYTES),
        "lower_bound_s": max(found.lower_bound_s, 0.0),
        "decided_ops": len(set(best.built.op_node.values())),
        "stop": found.stop.name,
        "origin": best.name,
        "inputs": tuple(str(s) for s in best.decisions.inputs),
        "outputs": tuple(str(s) for s in best.decisions.outputs),
        "pins": options.pins,
        "forbidden": options.forbidden,
        "shardings": options.shardings,
        "baselines": {
            name: BaselineRow(b.step_s, b.peak_bytes, b.fits, b.mesh)
            for name, b in sorted(found.baselines.items())
        },
        "collectives": collective_rows(sums),
        "ops": ops,
        "values": values,
        "candidates": _candidates(found, best),
    }


def collective_rows(sums: Account) -> tuple[CollectiveRow, ...]:
    """The collectives of an account as rows of a plan file."""
    return tuple(CollectiveRow(**asdict(c)) for c in sums.collectives)


def _candidates(found: SearchOutcome, best: Candidate) -> tuple[CandidateRow, ...]:
    """The best plan of every other mesh."""
    return tuple(
        CandidateRow(str(c.mesh), c.account.step_s, c.account.peak_bytes)
        for c in found.candidates
        if c.name == "search" and c is not best
    )


def idle_axes(best: Candidate, machine: Cluster) -> list[str]:
    """A warning for every mesh axis that splits nothing."""
    used: set[str] = set()
    for roles in best.decisions.ops.values():
        used.update(a for a, r in zip(best.mesh.names, roles, strict=True) if r)
    for state in best.decisions.values.values():
        used.update(state.axes)
    idle = [(a, n) for a, n in best.mesh.axes if a not in used and n > 1]
    busy = machine.num_devices
    for _, n in idle:
        busy //= n
    if not idle:
        return []
    return [
        f"only {busy} of {machine.num_devices} devices do different work: nothing is split over "
        f"mesh axis {', '.join(f'{a}={n}' for a, n in idle)}, because no dimension divides or "
        "splitting would cost more than it saves"
    ]
