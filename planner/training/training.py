"""A loss to train, with its arguments and optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .step_call import StepCall, step_for


@dataclass(frozen=True)
class Training:
    """A loss to train, with its arguments and optimizer.

    args: parameters and batch.
    has_aux: whether the loss returns (loss, aux).
    batch_axis: example dimension of the batch.
    name: name of the loss, for messages.
    """

    loss_fn: Any
    args: tuple[Any, ...]
    optimizer: Any
    has_aux: bool
    batch_axis: int
    name: str

    def step(self, microbatches: int, loss_reduction: str) -> StepCall:
        """The training step on some number of micro-batches.

        Raises:
            PlanError: if the batch or the loss cannot be cut into `microbatches` parts.
        """
        return step_for(
            self.loss_fn, self.args, optimizer=self.optimizer, microbatches=microbatches,
            has_aux=self.has_aux, loss_reduction=loss_reduction, batch_axis=self.batch_axis,
        )  # fmt: skip
