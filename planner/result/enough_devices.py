"""Are there as many devices as a plan needs?"""

from __future__ import annotations

from ..common.errors import PlanError


def check_enough(here: int, need: int, what: str, where: str) -> None:
    """Checks that there are enough devices to run on.

    Args:
        here: number of devices present.
        need: number of devices needed.
        what: needs them, for the message.
        where: the error is.

    Raises:
        PlanError: if there are too few.
    """
    if here < need:
        raise PlanError(
            f"{what} needs {need} devices, there are {here}", kind="too-few-devices", where=where,
            remedy="plan for the devices there are, start more processes, or on a CPU set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={need} before JAX starts",
        )  # fmt: skip
