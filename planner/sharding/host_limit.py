"""The memory of a host as a limit: what its devices together may keep there."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager

from costmodel import Cluster

from ..common.errors import PlanError
from ..common.units_text import bytes_text
from .search.over_meshes import USABLE

HOST = "memory of the host"


def host_limit_of(machine: Cluster) -> float:
    """Bytes of the host for each of its devices; infinite where no profile says."""
    link = machine.device.host_link
    known = link.memory_bytes if link is not None else None
    return math.inf if known is None else USABLE * known


def check_host(needs_bytes: float, machine: Cluster) -> None:
    """Refuses a plan that keeps more on the host than it has.

    Args:
        needs_bytes: memory of the host that a device takes at its peak.
        machine: the cluster.

    Raises:
        PlanError: if it is above the limit.
    """
    limit = host_limit_of(machine)
    if needs_bytes <= limit:
        return
    raise PlanError(
        f"does not fit: {bytes_text(needs_bytes)} of the host's memory are needed for each device, "
        f"{bytes_text(needs_bytes - limit)} more than the limit of {bytes_text(limit)}",
        kind="does-not-fit", where=HOST,
        remedy="use more devices, or write `host_memory` into the cluster file if a host has more",
    )  # fmt: skip


@contextmanager
def naming_the_host(left_bytes: float) -> Generator[None]:
    """Names the host's memory in the refusal of a step whose state it does not hold all of.

    Args:
        left_bytes: state that stays on the devices for want of it, of all devices together.
    """
    try:
        yield
    except PlanError as error:
        if not left_bytes or error.kind != "does-not-fit" or error.where == HOST:
            raise
        raise PlanError(
            f"{error.message}; {bytes_text(left_bytes)} of the state stay on the devices, as the "
            "memory of the hosts is too small for them", kind=error.kind, where=HOST,
            needs_bytes=error.needs_bytes, remedy=f"{error.remedy}, or hosts of more memory",
        ) from error  # fmt: skip
