"""A stage of a pipeline that is edited, and what its edited program costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ir import IRError, check
from ir.trace import Traced

from ..common.errors import PlanError
from ..sharding.planned_program import PlannedProgram
from .cut.replaced import with_program
from .cut.stage_training_step import training_step_of
from .divide.stage_price import StagePrice
from .search import PipelineSearch
from .stage_edits import StageEdits
from .trials import PlannedPipeline


@dataclass(frozen=True)
class EditedStage:
    """A stage with its edits so far.

    traced: its micro-batch, forward and backward pass.
    """

    traced: Traced
    plan: PlannedProgram
    price: StagePrice
    edits: StageEdits


@dataclass(frozen=True)
class StageTrial:
    """Plans the edited programs of a stage.

    number: of the stage; flight: micro-batches in flight.
    """

    found: PlannedPipeline
    search: PipelineSearch
    number: int
    flight: int

    @property
    def devices(self) -> int:
        """Devices of the stage."""
        return self.found.ranked.shape.sizes[self.number]

    def unedited(self) -> EditedStage:
        """The stage as it was planned."""
        s, found = self.number, self.found
        edits = StageEdits.of(found.plans[s].program)
        return EditedStage(found.bound.edited(s), found.plans[s], found.prices[s], edits)

    def seconds(self, stage: EditedStage) -> float:
        """Seconds of a micro-batch, with its share of what a step has once."""
        price = stage.price
        return price.microbatch_s + price.once_s / self.found.ranked.shape.microbatches

    def planned(self, program: Traced, edits: StageEdits) -> EditedStage | None:
        """The stage with an edited program, None if it cannot be planned."""
        shape, bound = self.found.ranked.shape, self.found.bound
        stage = bound.stages[self.number]
        try:
            check(program.graph, after="editing a stage")
            joint = with_program(stage.joint, program)
            other = training_step_of(joint, bound.loss.microbatches, bound.optimizer)
            plan, price = self.search.planner.planned(other, shape, self.number, self.flight)
        except (IRError, PlanError):
            return None
        file = edits.noted(plan.program)
        return EditedStage(program, replace(plan, program=file), price, edits)
