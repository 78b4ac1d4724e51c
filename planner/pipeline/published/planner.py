"""A planner: a name, whose formula it follows, and how it finds a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .convention import Convention
from .problem import PipelinePlan, Problem


@dataclass(frozen=True, slots=True)
class Request:
    """What a planner is asked.

    convention: by which the plan will be judged; published planners follow their own.
    choose_microbatches: whether the number of micro-batches may be changed.
    stages: most stages, None for no limit.
    """

    problem: Problem
    convention: Convention
    choose_microbatches: bool = False
    stages: int | None = None


@dataclass(frozen=True, slots=True)
class Planner:
    """One way to plan; `plan` returns None where it finds nothing that fits."""

    name: str
    source: str
    convention: str
    plan: Callable[[Request], PipelinePlan | None]
