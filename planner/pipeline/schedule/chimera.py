"""Chimera: copies of the model in opposite directions fill each other's idle time."""

from __future__ import annotations

from ...common.errors import PlanError
from .costs import uniform
from .greedy import greedy
from .placement import bidirectional
from .table import Schedule


def chimera(stages: int, microbatches: int, *, pairs: int = 1) -> Schedule:
    """Half of the micro-batches go down the devices, half go up.

    Each chunk holds at most min(p / (2 pairs), p - s) micro-batches for stage s of p; backwards go
    before forwards, late stages before early ones. With equal times of forward and backward the
    idle time of a device is p / pairs - 2 forwards, for any number of micro-batches that p
    divides; every device holds 2 * pairs stages' weights and at most p micro-batches.

    Args:
        stages: devices p, a multiple of 2 * pairs.
        microbatches: in a step, a multiple of p.
        pairs: of opposite pipelines.

    Raises:
        PlanError: if the numbers do not divide.

    Source: Li and Hoefler, Chimera, SC 2021, sections 3.1 to 3.5.
    """
    placement = bidirectional(stages, pairs)
    if microbatches % stages:
        raise PlanError(
            f"{microbatches} micro-batches on {stages} stages", kind="bad-schedule",
            where="chimera", remedy="use a number of micro-batches that the stages divide",
        )  # fmt: skip
    each = stages // (2 * pairs)
    limits = [min(each, stages - s) for s in placement.stage]
    costs = uniform(stages, input_gradient_s=1.0, weight_gradient_s=0.0)
    return greedy(placement, microbatches, costs, in_flight=limits, name="chimera")
