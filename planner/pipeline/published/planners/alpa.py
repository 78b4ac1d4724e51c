"""Alpa's inter-operator pass: sub-meshes (1, 2^i) or (n, all of a host), every device used.

Micro-batches are given, layers are recomputed all or none, transfers are not in the objective.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formulas import CONVENTIONS
from ..planner import Planner, Request
from ..problem import PipelinePlan
from ..search import search
from ..stage_space import Space


def is_submesh(count: int, *, per_host: int) -> bool:
    """Whether a sub-mesh of this many devices is among those that always tile a cluster."""
    return (count & (count - 1) == 0 and count <= per_host) or count % per_host == 0


def plan(request: Request) -> PipelinePlan | None:
    """The best plan of its space under its own convention."""
    problem = request.problem
    counts = partial(is_submesh, per_host=min(h.devices for h in problem.machine.hosts))
    space = Space("either", counts=counts, all_devices=True, stages=request.stages)
    found = search(problem, CONVENTIONS["alpa"], space)
    return None if found is None else replace(found, exact=False)


ALPA = Planner("alpa", "Zheng et al., OSDI 2022, section 5", "alpa", plan)
