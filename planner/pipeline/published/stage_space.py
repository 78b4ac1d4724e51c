"""Which stages a planner may form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .problem import Problem


def any_count(count: int) -> bool:
    """Allows every number of devices."""
    return True


@dataclass(frozen=True, slots=True)
class Space:
    """Limits on the stages of a plan.

    recompute: `exact`, `greedy`, `none`, `full` or `either`; see `Tables`.
    tensor: whether tensor parallelism may be used.
    data: whether replicas may be used.
    counts: whether a stage may have this many devices.
    replicas: how many each stage must have, None for any number.
    all_devices: whether none may be left over.
    stages: most stages, None for no limit.
    """

    recompute: str = "exact"
    tensor: bool = True
    data: bool = True
    counts: Callable[[int], bool] = any_count
    replicas: int | None = None
    all_devices: bool = False
    stages: int | None = None

    def degrees(self, problem: Problem) -> tuple[int, ...]:
        """Tensor-parallel degrees to try."""
        return problem.degrees if self.tensor else (1,)
