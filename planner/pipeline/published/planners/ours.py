"""Ours: everything chosen together, exact under the convention asked for.

Stages of a graph, devices of each, both degrees, recomputation per layer, micro-batches, order of
unlike hosts and uneven shares of unlike replicas. Every other planner's plan is a point of this
space; those found are the first to beat, so none of them can be better.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..planner import Planner, Request
from ..problem import PipelinePlan
from ..search import microbatch_counts, over_microbatches
from ..stage_space import Space


def plan(request: Request, *, against: Sequence[Planner]) -> PipelinePlan | None:
    """The best plan under the request's convention.

    Args:
        request: problem and convention.
        against: planners whose plans are tried first.
    """
    problem = request.problem
    known = [found for planner in against if (found := planner.plan(request)) is not None]
    counts = [problem.microbatches]
    if request.choose_microbatches:
        others = {plan.microbatches for plan in known} | set(microbatch_counts(problem))
        counts = sorted(others, reverse=True)
    orders = None if problem.machine.is_flat else problem.machine.orders()
    space = Space("exact", stages=request.stages)
    return over_microbatches(
        problem, request.convention, space, counts=counts, machines=orders, known=known
    )
