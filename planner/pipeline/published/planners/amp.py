"""AMP: the same data- and tensor-parallel degree in every stage, layers cut by its exact program.

Its formula averages layer times over unlike devices and knows no memory; a plan that does not fit
is passed over here.
"""

from __future__ import annotations

from dataclasses import replace

from ..formulas import CONVENTIONS
from ..planner import Planner, Request
from ..price import price
from ..problem import PipelinePlan
from ..search import search
from ..stage_space import Space


def candidates(request: Request) -> list[tuple[float, PipelinePlan]]:
    """The best plan of each pair of degrees, cheapest first, with its step seconds."""
    problem, convention = request.problem, CONVENTIONS["amp"]
    devices = problem.machine.devices
    found: list[tuple[float, PipelinePlan]] = []
    for t in problem.degrees:
        for d in range(1, devices // t + 1):
            if devices % (d * t) or (d * t > devices):
                continue
            count = problem.microbatches
            if request.choose_microbatches:
                if problem.batch % (d * problem.graph.batch):
                    continue
                count = problem.batch // (d * problem.graph.batch)
            width = d * t
            space = Space(
                "none", counts=width.__eq__, replicas=d, all_devices=True, stages=request.stages
            )
            plan = search(replace(problem, microbatches=count), convention, space)
            if plan is not None and _is_uniform(plan, t):
                found.append((price(problem, plan, convention).step_s, replace(plan, exact=False)))
    return sorted(found, key=lambda item: item[0])


def _is_uniform(plan: PipelinePlan, degree: int) -> bool:
    return all(stage.tensor_parallel == degree for stage in plan.stages)


def plan(request: Request) -> PipelinePlan | None:
    """The best of all degrees."""
    return next((found for _, found in candidates(request)), None)


AMP = Planner("amp", "Li et al., NeurIPS 2022, section 3", "amp", plan)
