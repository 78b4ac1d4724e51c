"""What a search over one program returns: a record, of which `planner.api` makes a `Plan`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ir.trace import Traced

from ..files.program_plan import ProgramPlan


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """A planned program.

    program: what was decided, and what it is predicted to cost.
    traced: the program, rewritten if the plan's is.
    seconds: spent, by pass.
    cached: it was found in the plan store and not searched.
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
        """No plan of the searched space is faster."""
        return self.program.lower_bound_s
