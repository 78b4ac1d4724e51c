"""A plan file priced again: by this version's cost model, on the cluster that the file names."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ..common.compiler_options import compiler_options
from ..common.stop import PROVED, Stop
from ..files.plan_file import one_stage
from ..files.program_plan import chunks_rows, site_rows
from ..sharding.cost.account import memory_on_cpus
from ..sharding.cost.inside_ops import permutes
from ..sharding.search.found_to_file import collective_rows
from .plan import Plan


def reprice(plan: Plan) -> Plan:
    """The same decisions with the times, memory and collectives that they have now.

    Raises:
        PlanError: if a decision of the file is not in the space of this version.
    """
    analysed, program = plan.analysed, plan.program
    sums = analysed.account
    least_s = min(program.lower_bound_s, sums.step_s)
    proved = sums.step_s - least_s <= PROVED * sums.step_s
    stop = Stop.GAP.name if program.stop == Stop.OPTIMAL.name and not proved else program.stop
    decisions = analysed.decided.plan.decisions
    in_parts = site_rows(decisions)
    rings, copies = permutes(sums.inside, analysed.reshard)
    again = msgspec.structs.replace(
        program, step_s=sums.step_s, compute_s=sums.compute_s, communication_s=sums.communication_s,
        peak_bytes=sums.peak_bytes, argument_bytes=sums.argument_bytes,
        collectives=collective_rows(sums), exposed_s=sums.exposed_s, lower_bound_s=least_s,
        stop=stop, in_parts=in_parts, in_chunks=chunks_rows(decisions),
        compiler_options=compiler_options(
            overlap=program.overlap, on_host=sums.host_bytes > 0,
            copies=bool(in_parts) or copies, rings=rings,
        ),
    )  # fmt: skip
    return replace(plan, file=one_stage(again, len(analysed.graph.nodes)))


def predicted_peak_bytes(plan: Plan, compiler: str) -> float:
    """Memory of one device under a plan, as a compiler lays it out.

    Args:
        plan: of one stage.
        compiler: `host`, XLA's for CPUs; any other is one for the plan's machine.

    Raises:
        PlanError: if a decision of the file is not in the space of this version.
    """
    sums = plan.analysed.account
    if compiler == "host" and not plan.cluster.has_cpus:
        return float(memory_on_cpus(sums.memory, sums.argument_bytes).max(initial=0.0))
    return sums.peak_bytes
