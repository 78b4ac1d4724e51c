"""Result of the search over one program, from which `planner.api.plan` makes a `Plan`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ir.trace import Traced

from ..files.program_plan import ProgramPlan


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """A program with its plan.

    program: decisions and predicted costs.
    traced: the program, with the plan's rewrites.
    seconds: time spent, by pass.
    cached: whether the plan came from the plan store.
    """

    program: ProgramPlan
    traced: Traced
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    cached: bool = False

    @property
    def step_s(self) -> float:
        """Predicted seconds of one call."""
        return self.program.step_s

    @property
    def lower_bound_s(self) -> float:
        """Bound of the step over all plans in the search space [s]."""
        return self.program.lower_bound_s
