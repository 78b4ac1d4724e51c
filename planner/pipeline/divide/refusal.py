"""Why no pipeline fits, by how much, and what would help."""

from __future__ import annotations

from collections.abc import Iterable

from ...common.errors import PlanError
from ...common.units_text import bytes_text

REMEDY = "use more devices or micro-batches, or another number of stages"


def refusal(
    needs_bytes: Iterable[float], limit_bytes: float, where: str, *, tried: bool
) -> PlanError:
    """An error for pipelines of which none fits.

    Args:
        needs_bytes: what each that was tried needs on its fullest device.
        limit_bytes: of a device.
        where: what it was planned for.
        tried: whether any was.
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
        f"does not fit: the leanest pipeline tried needs {bytes_text(least)} on some device, "
        f"{bytes_text(least - limit_bytes)} more than the limit of {bytes_text(limit_bytes)}",
        kind="does-not-fit", where=where, needs_bytes=least,
        remedy=f"{REMEDY}, or at least {bytes_text(least)} of memory",
    )  # fmt: skip
