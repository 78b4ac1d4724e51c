"""The error where no pipeline fits: by how much, and which change would help."""

from __future__ import annotations

from collections.abc import Iterable

from ...common.errors import PlanError
from ...common.units_text import bytes_text

REMEDY = "use more devices or micro-batches, or another number of stages"


def refusal(
    needs_bytes: Iterable[float], limit_bytes: float, where: str, *, tried: bool
) -> PlanError:
    """Builds the error for pipelines none of which fits.

    Args:
        needs_bytes: bytes that each tried pipeline needs on its fullest device.
        limit_bytes: memory limit of a device.
        where: name of the cluster.
        tried: whether any division was planned.
    """
    if not tried:
        return PlanError(
            "no division into stages was found that uses all devices", kind="does-not-fit",
            where=where, remedy="use another number of stages, devices or micro-batches",
        )  # fmt: skip
    least = min((x for x in needs_bytes if x > limit_bytes), default=0.0)
    if not least:
        return PlanError(
            f"no pipeline was found that fits {bytes_text(limit_bytes)} on each device, though "
            "one may exist", kind="does-not-fit", where=where, remedy=REMEDY,
        )  # fmt: skip
    return PlanError(
        f"does not fit: the smallest pipeline tried needs {bytes_text(least)} on some device, "
        f"{bytes_text(least - limit_bytes)} more than the limit of {bytes_text(limit_bytes)}",
        kind="does-not-fit", where=where, needs_bytes=least,
        remedy=f"{REMEDY}, or at least {bytes_text(least)} of memory",
    )  # fmt: skip
