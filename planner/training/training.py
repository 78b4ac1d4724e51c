"""A loss to train, with its arguments and optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .step_call import StepCall, step_for


@dataclass(frozen=True)
class Training:
    """A loss to train, with its arguments and optimizer.

    args: parameters and batch.
    has_aux: whether the loss returns (loss, aux).
    batch_axis: example dimension of the batch.
    name: name of the loss, for messages.
    known: steps of one micro-batch made so far, with this loss or another in its place.
    """

    loss_fn: Any
    args: tuple[Any, ...]
    optimizer: Any
    has_aux: bool
    batch_axis: int
    name: str
    known: dict[tuple[int, str], StepCall] = field(
        default_factory=dict[tuple[int, str], StepCall], compare=False, repr=False
    )

    def step(self, microbatches: int, loss_reduction: str) -> StepCall:
        """The training step on some number of micro-batches.

        Raises:
            PlanError: if the batch or the loss cannot be cut into `microbatches` parts.
        """
        key = id(self.loss_fn), loss_reduction  # a step keeps its loss alive
        if microbatches == 1 and key in self.known:
            return self.known[key]
        made = step_for(
            self.loss_fn, self.args, optimizer=self.optimizer, microbatches=microbatches,
            has_aux=self.has_aux, loss_reduction=loss_reduction, batch_axis=self.batch_axis,
        )  # fmt: skip
        if microbatches == 1:  # JAX keeps a program as long as its function lives
            self.known[key] = made
        return made
