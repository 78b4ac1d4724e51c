# pyright: basic
"""Which devices JAX may use while planning."""

from __future__ import annotations

from typing import Any

import lazy_loader

import costmodel
from profiles import ProfileError

from ..common.errors import PlanError
from .failure import described, profile_message

jax: Any = lazy_loader.load("jax")  # help and wrong options need none


def leave_accelerators() -> None:
    """Lets JAX use the CPU only."""
    jax.config.update("jax_platforms", "cpu")


def choose_platform(cluster: str, devices: int | None = None) -> None:
    """Leaves accelerators alone unless the cluster is the devices present.

    Args:
        cluster: name or file.
        devices: number of devices instead of that in the name or file.

    Raises:
        PlanError: if the cluster is not known, or JAX finds no device.
    """
    try:
        machine = costmodel.parse_cluster(cluster, devices=devices)
    except ProfileError as error:
        where = "--cluster" if error.where in ("", cluster) else f"--cluster, {error.where}"
        raise PlanError(
            profile_message(error), kind="bad-cluster", where=where,
            remedy=error.remedy or "see `meshwright clusters`",
        ) from error  # fmt: skip
    if machine.profile != "host":
        leave_accelerators()
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter from backends that are not built
        raise PlanError(
            f"JAX finds no device: {described(error)}", kind="no-devices",
            where=f"--cluster {cluster}",
            remedy="set JAX_PLATFORMS to a platform that is present, such as cpu",
        ) from error  # fmt: skip
