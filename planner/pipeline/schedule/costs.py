"""Costs of the tasks of a schedule: seconds and bytes of each stage, links between devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, final

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from ...common.errors import PlanError

Amount = Annotated[float, Meta(ge=0.0, le=1e30)]
Positive = Annotated[float, Meta(gt=0.0)]
Numbers = tuple[Amount, ...]


@final
class StageCosts(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):  # fmt: skip
    """Seconds and bytes of every stage for one micro-batch, on each device of the stage.

    Each field has one number for each stage (part of the model, `Placement.stage`), in model
    order; a field left empty is 0 for all.

    forward_s, input_gradient_s, weight_gradient_s: of one micro-batch; a `BACKWARD` task takes
        both gradients together.
    recompute_s: of a `RECOMPUTE` task.
    sync_s: summing the gradients of the stage among its copies, all parts together.
    optimizer_s: of one update.
    offload_s, fetch_s: moving the activations of one micro-batch to the host and back.
    activation_bytes: kept from the forward until the input gradient.
    weight_input_bytes: the share of it that is kept on until the weight gradient.
    boundary_bytes: kept from the forward if the stage recomputes; the rest lives from the
        recomputation on.
    output_bytes: sent to the next stage; its gradient, sent back, has the same size.
    weight_bytes: of the parameters; held once for each version in use.
    gradient_bytes: of the accumulated gradients, held from the first weight gradient until the
        update.
    state_bytes: optimizer state and everything else that is held all through the step.
    slice_share: share of each token slice in the times and bytes; equal shares if empty.
    """

    forward_s: Numbers
    input_gradient_s: Numbers = ()
    weight_gradient_s: Numbers = ()
    recompute_s: Numbers = ()
    sync_s: Numbers = ()
    optimizer_s: Numbers = ()
    offload_s: Numbers = ()
    fetch_s: Numbers = ()
    activation_bytes: Numbers = ()
    weight_input_bytes: Numbers = ()
    boundary_bytes: Numbers = ()
    output_bytes: Numbers = ()
    weight_bytes: Numbers = ()
    gradient_bytes: Numbers = ()
    state_bytes: Numbers = ()
    slice_share: Numbers = ()

    def __post_init__(self) -> None:
        stages = len(self.forward_s)
        for name in self.__struct_fields__:
            values = tuple(float(v) for v in getattr(self, name))
            if any(not math.isfinite(v) or v < 0 for v in values):
                raise _bad(name, f"has {values}", "give numbers from 0 on")
            if name != "slice_share" and len(values) not in (0, stages):
                raise _bad(
                    name, f"has {len(values)} numbers, forward_s has {stages}",
                    "give one for each stage",
                )  # fmt: skip
            force_setattr(self, name, values or (0.0,) * stages)
        if len(self.slice_share) == stages and not any(self.slice_share):
            force_setattr(self, "slice_share", ())

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.forward_s)

    @property
    def backward_s(self) -> Numbers:
        """Both gradients of one micro-batch."""
        pairs = zip(self.input_gradient_s, self.weight_gradient_s, strict=True)
        return tuple(a + b for a, b in pairs)


def uniform(
    stages: int,
    *,
    forward_s: float = 1.0,
    input_gradient_s: float = 1.0,
    weight_gradient_s: float = 1.0,
    **others: float,
) -> StageCosts:
    """The same costs for every stage; other fields of `StageCosts` by name."""
    given = {
        "forward_s": forward_s, "input_gradient_s": input_gradient_s,
        "weight_gradient_s": weight_gradient_s, **others,
    }  # fmt: skip
    return StageCosts(**{name: (value,) * stages for name, value in given.items()})


@final
class Links(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links between devices, one for each ordered pair; pairs do not share a link.

    A transfer takes latency + bytes / bandwidth on its link, one after another in the order in
    which the sender produced them.

    latency_s, bandwidth_bytes_per_s: one number for all pairs, or a square table [from][to].
    overlap: transfers run beside compute; if not, the sender's compute waits until its transfer
        is out.
    """

    latency_s: Amount | tuple[Numbers, ...] = 0.0
    bandwidth_bytes_per_s: Positive | tuple[tuple[Positive, ...], ...] = math.inf
    overlap: bool = True

    def __post_init__(self) -> None:
        for name, low in (("latency_s", 0.0), ("bandwidth_bytes_per_s", 5e-324)):
            try:
                values = np.asarray(getattr(self, name), float)
            except ValueError as error:
                raise _bad(name, "has rows of unequal length", "give a square table") from error
            square = values.ndim == 0 or (values.ndim == 2 and len(set(values.shape)) == 1)
            if not square or not bool(np.all(values >= low)):
                raise _bad(name, "is neither a positive number nor a square table", "give one")

    def transfer_s(
        self, source: np.ndarray, target: np.ndarray, size_bytes: np.ndarray
    ) -> np.ndarray:
        """Seconds of each transfer, by device at either end and bytes."""
        latency, bandwidth = (
            np.asarray(values, float) for values in (self.latency_s, self.bandwidth_bytes_per_s)
        )
        latency = latency if latency.ndim == 0 else latency[source, target]
        bandwidth = bandwidth if bandwidth.ndim == 0 else bandwidth[source, target]
        return latency + size_bytes / bandwidth


def shares(costs: StageCosts, slices: int) -> Sequence[float]:
    """Share of each slice.

    Raises:
        PlanError: if the costs name another number of slices.
    """
    if not costs.slice_share:
        return (1.0 / slices,) * slices
    if len(costs.slice_share) != slices:
        raise _bad(
            "slice_share", f"has {len(costs.slice_share)} shares for {slices} slices",
            "give one for each slice",
        )  # fmt: skip
    return costs.slice_share


def _bad(name: str, message: str, remedy: str) -> PlanError:
    return PlanError(message, kind="bad-costs", where=name, remedy=remedy)
