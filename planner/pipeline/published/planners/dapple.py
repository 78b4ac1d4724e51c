"""DAPPLE: synchronous latency, data parallelism per stage, micro-batches of the profiled size.

A plan for K / r devices is also tried on r of each, with micro-batches r times as large, as its
released planner does.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formulas import CONVENTIONS
from ..planner import Planner, Request
from ..price import price
from ..problem import PipelinePlan
from ..search import search
from ..stage_space import Space


def plan(request: Request) -> PipelinePlan | None:
    """The best plan of its space under its own convention."""
    problem, convention = request.problem, CONVENTIONS["dapple"]
    devices, size = problem.machine.devices, problem.graph.batch
    best: tuple[float, PipelinePlan] | None = None
    for ratio in range(1, devices + 1):
        count = problem.batch // (ratio * size)
        if devices % ratio or not count or problem.batch % count:
            continue
        if not request.choose_microbatches:
            count = problem.microbatches
        space = Space(
            "none", tensor=False, counts=partial(_is_multiple, of=ratio), stages=request.stages
        )
        below_s = best[0] if best else float("inf")
        cut = replace(problem, microbatches=count)
        found = search(cut, convention, space, below_s=below_s)
        if found is None:
            continue
        cost = price(problem, found, convention).step_s
        if best is None or cost < best[0]:
            best = cost, replace(found, exact=False)
        if not request.choose_microbatches:
            break
    return None if best is None else best[1]


def _is_multiple(count: int, *, of: int) -> bool:
    return count % of == 0


DAPPLE = Planner("dapple", "Fan et al., PPoPP 2021, section 4", "dapple", plan)
