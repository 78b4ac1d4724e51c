"""Result of the search for a plan, from which `planner.api.plan` makes a `Plan`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from ir.trace import Traced

from ..files.plan_file import PlanFile, one_stage
from ..files.program_plan import AttentionRow
from ..sharding.planned_program import PlannedProgram

if TYPE_CHECKING:  # a plan of one program needs none of it
    from .bound_stages import BoundStages


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with the program that it belongs to.

    file: decisions and predicted costs.
    bound: the program, with the plan's rewrites; or the loss, cut into the plan's stages.
    seconds: time spent, by pass.
    cached: whether the plans of all its programs came from the plan store.
    """

    file: PlanFile
    bound: Traced | BoundStages
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    cached: bool = False

    def with_attention(self, rows: tuple[AttentionRow, ...]) -> Planned:
        """The same with what was found of attention that the program writes out."""
        if not rows:
            return self
        programs = tuple(structs.replace(each, attention=rows) for each in self.file.programs)
        return replace(self, file=structs.replace(self.file, programs=programs))


def in_one_program(found: PlannedProgram) -> Planned:
    """The plan of one program as a plan of one stage."""
    file = one_stage(found.program, len(found.traced.graph.nodes))
    return Planned(file, found.traced, found.seconds, found.cached)
