"""The loss of a pipeline, cut into stages, with what a plan changes in each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ir.trace import Traced

from ..files.program_plan import SubstitutionRow
from ..sharding.rewrite.replay import replayed
from .cut.opened_loss import Opened
from .cut.replaced import traced_joint, with_program
from .cut.stage import Staged
from .cut.stage_gradient import joint_of
from .cut.stage_training_step import StageTrainingStep, training_step_of
from .stage_edits import StageEdits


@dataclass(frozen=True)
class BoundStages:
    """A pipeline's loss, cut into stages, which are traced on first use.

    rows: the rewrites of each stage, after its edits; empty if no stage has any.
    edits: those of each stage; empty if no stage has any.
    """

    loss: Opened
    cut: Staged
    optimizer: Any
    rows: tuple[tuple[SubstitutionRow, ...], ...] = ()
    edits: tuple[StageEdits, ...] = ()

    @cached_property
    def stages(self) -> tuple[StageTrainingStep, ...]:
        """Every stage's step."""
        return tuple(self._stage(s) for s in range(len(self.cut.stages)))

    def edited(self, s: int) -> Traced:
        """The micro-batch of a stage, forward and backward, with its edits and not rewritten."""
        edits = self.edits[s] if self.edits else StageEdits()
        return edits.applied(joint_of(self.loss.program, self.cut, s), f"stage {s}")

    def _stage(self, s: int) -> StageTrainingStep:
        joint = joint_of(self.loss.program, self.cut, s)
        if self.edits and self.edits[s]:
            joint = with_program(joint, self.edited(s))
        if self.rows and self.rows[s]:
            after = replayed(traced_joint(joint), self.rows[s], f"stage {s}")
            joint = with_program(joint, after)
        return training_step_of(joint, self.loss.microbatches, self.optimizer)
