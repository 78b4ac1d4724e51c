# pyright: basic
"""A training step that the planner owns, with the arguments it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ir.trace import watched

from .. import training
from ..common.errors import PlanError


@dataclass(frozen=True)
class StepCall:
    """A step that the planner built, and the arguments it takes."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    warnings: tuple[str, ...]
    reduction: str

    @cached_property
    def watched(self) -> Any:
        """The step, which JAX traces once however often its program is read."""
        return watched(self.fn, self.args)


def step_for(
    loss_fn: Any,
    args: tuple[Any, ...],
    *,
    optimizer: Any,
    microbatches: int,
    loss_reduction: str,
    has_aux: bool = False,
    batch_axis: int = 0,
) -> StepCall:
    """Builds the training step of a loss and an optimizer."""
    params, batch = params_and_batch(args)
    built = training.step.build_step(
        loss_fn, params, batch, optimizer, has_aux=has_aux, microbatches=microbatches,
        loss_reduction=loss_reduction, batch_axis=batch_axis,
    )  # fmt: skip
    return StepCall(
        built.fn, (params, built.opt_state_structs, batch), built.warnings, built.reduction
    )


def params_and_batch(args: tuple[Any, ...]) -> tuple[Any, Any]:
    """The two arguments of a loss.

    Raises:
        PlanError: if there are more or fewer.
    """
    if len(args) != 2:
        raise PlanError(
            f"with optimizer= the arguments are (params, batch), got {len(args)} arguments",
            kind="bad-argument", where="plan",
            remedy="put what is trained into params and everything else into batch",
        )  # fmt: skip
    params, batch = args
    return params, batch
