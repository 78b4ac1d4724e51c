"""A finished search of one program: its plan, and what the search knows beside it."""

from __future__ import annotations

from dataclasses import dataclass

from .planned_program import PlannedProgram
from .search.over_meshes import SearchOutcome


@dataclass(frozen=True)
class Searched:
    """A plan with the outcome that it was made of."""

    plan: PlannedProgram
    outcome: SearchOutcome

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        return self.plan.step_s

    @property
    def bound_s(self) -> float:
        """Lower bound of the step over all plans in the search space [s]."""
        return self.plan.lower_bound_s
