"""What the search for a plan returns: a record, of which `planner.api` makes a `Plan`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ir.trace import Traced

from ..files.plan_file import PlanFile, one_stage
from ..sharding.planned_program import PlannedProgram
from .stage_planner import BoundStages


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that was found.

    file: what was decided, and what it is predicted to cost.
    bound: the program, rewritten if the plan's is; or the loss, cut as the file says.
    seconds: spent, by pass.
    cached: the plans of all its programs were found in the plan store and not searched.
    """

    file: PlanFile
    bound: Traced | BoundStages
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    cached: bool = False


def in_one_program(found: PlannedProgram) -> Planned:
    """The plan of one program as a plan of one stage."""
    file = one_stage(found.program, len(found.traced.graph.nodes))
    return Planned(file, found.traced, found.seconds, found.cached)
