"""Edits of a stage's micro-batch, forward and backward pass, as the file of its plan has them."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from ir.trace import Traced

from ..files.program_plan import OrderedRow, PaddedRow, ProgramPlan, RecomputedRow
from ..sharding.ordering.rows import as_ordered
from ..sharding.padding.rows import as_padded
from ..sharding.recompute.variants import with_choice
from ..sharding.sorted_rows.rows import as_blocked
from .cut.replaced import late_inputs, traced_joint
from .cut.stage_gradient import Joint


@dataclass(frozen=True)
class StageEdits:
    """What is edited in a stage before it is rewritten: fields of its plan.

    recomputed: what its backward pass computes again of all that it reads; None if that is as its
        kind of recomputation says.
    hosted: what of the rest waits in the memory of the host.
    """

    recomputed: tuple[RecomputedRow, ...] | None = None
    hosted: tuple[RecomputedRow, ...] = ()
    padded: tuple[PaddedRow, ...] = ()
    sorted_blocks: int = 0
    ordered: tuple[OrderedRow, ...] = ()

    @staticmethod
    def of(program: ProgramPlan) -> StageEdits:
        """The edits of a stage's plan."""
        return StageEdits(
            program.recomputed,
            program.hosted,
            program.padded,
            program.sorted_blocks,
            program.ordered,
        )

    def __bool__(self) -> bool:
        return self != StageEdits()

    def applied(self, joint: Joint, where: str) -> Traced:
        """The micro-batch of a stage with its edits.

        Raises:
            PlanError: if it is another stage.
        """
        traced = traced_joint(joint)
        if self.recomputed is not None:
            traced = with_choice(traced, self.recomputed, self.hosted, late_inputs(joint, traced))
        traced = as_padded(traced, self.padded, where)
        return as_ordered(as_blocked(traced, self.sorted_blocks, where), self.ordered, where)

    def noted(self, program: ProgramPlan) -> ProgramPlan:
        """The plan of the edited stage, which says so."""
        return structs.replace(
            program,
            recomputed=self.recomputed,
            hosted=self.hosted,
            padded=self.padded,
            sorted_blocks=self.sorted_blocks,
            ordered=self.ordered,
        )
