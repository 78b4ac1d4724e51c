"""PipeDream: data parallelism per stage, all devices used, nothing recomputed."""

from __future__ import annotations

from dataclasses import replace

from ..formulas import CONVENTIONS
from ..planner import Planner, Request
from ..problem import PipelinePlan
from ..search import search
from ..stage_space import Space


def plan(request: Request) -> PipelinePlan | None:
    """The best plan of its space under its own convention."""
    space = Space(recompute="none", tensor=False, all_devices=True, stages=request.stages)
    found = search(request.problem, CONVENTIONS["pipedream"], space)
    return None if found is None else replace(found, exact=False)


PIPEDREAM = Planner(
    "pipedream", "Narayanan et al., SOSP 2019, section 3.1", "pipedream", plan
)  # fmt: skip
