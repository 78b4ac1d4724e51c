"""A refusal before any search: what a step holds from its start to its end is too much."""

from __future__ import annotations

import math

from costmodel import Cluster

from ..common.errors import HeldError
from ..common.units_text import bytes_text


def check_held(held_bytes: float, limit_bytes: float, machine: Cluster, holds: str) -> None:
    """Refuses a step whose arguments do not fit, split over all devices.

    They are there whatever is computed again, in how many micro-batches and stages.

    Args:
        held_bytes: bytes of the arguments, of all devices together.
        limit_bytes: memory limit of a device.
        machine: the cluster.
        holds: what the arguments are.

    Raises:
        HeldError: if they take more than the limit.
    """
    least = held_bytes / machine.num_devices
    if least <= limit_bytes:
        return
    times = max(2, math.ceil(least / limit_bytes))
    raise HeldError(
        f"does not fit: holding {holds} alone needs {bytes_text(least)} on each device, split over "
        f"all, {bytes_text(least - limit_bytes)} more than the limit of {bytes_text(limit_bytes)}",
        kind="does-not-fit", where=machine.name, needs_bytes=least,
        remedy=f"use {times} times the devices or more, or at least {bytes_text(least)} of memory "
        "and what else the step needs; neither recomputation, micro-batches nor stages are of help",
    )  # fmt: skip
