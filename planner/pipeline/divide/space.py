"""The space of pipelines on a cluster: sizes of sub-meshes, numbers of stages and micro-batches."""

from __future__ import annotations

import math

from costmodel import Cluster

from ...common.errors import PlanError

MOST_STAGES = 16
SMALL = 16  # devices up to which sub-meshes of every size are tried
FEWEST_COUNT = 4


def anchors(cluster: Cluster) -> tuple[int, ...]:
    """Sizes of sub-meshes to price the whole program on: equal parts of a host, or whole hosts."""
    host, hosts, devices = cluster.devices_per_host, cluster.num_hosts, cluster.num_devices
    inside = [d for d in range(1, host + 1) if host % d == 0]
    across = [host * k for k in range(2, hosts + 1) if hosts % k == 0]
    least = devices / (2 * MOST_STAGES)
    found = [d for d in (*inside, *across) if least <= d < devices]
    if devices <= SMALL or max(found, default=0) < devices / 2:
        found.append(max(sizes(cluster, every=True), default=1))  # sizes between are interpolated
    return tuple(d for d in dict.fromkeys(found) if d < devices)


def sizes(cluster: Cluster, *, every: bool) -> tuple[int, ...]:
    """Devices of the sub-meshes to choose from.

    Args:
        cluster: all devices.
        every: whether to take all sizes within a host or of whole hosts, not only equal parts.
    """
    if not every and cluster.num_devices > SMALL:
        return anchors(cluster)
    host, devices = cluster.devices_per_host, cluster.num_devices
    least = devices / (2 * MOST_STAGES)
    found = [*range(1, host + 1), *range(2 * host, devices, host)]
    return tuple(d for d in found if least <= d < devices)


def counts(batch: int, asked: int | None) -> tuple[int, ...]:
    """Numbers of micro-batches to try: divisors of the batch, about four times apart."""
    if asked is not None:
        return (asked,)
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    found: list[int] = []
    goal = float(FEWEST_COUNT)
    while goal <= batch:
        found.append(min(divisors, key=lambda d: (abs(math.log(d / goal)), -d)))
        goal *= 4
    return tuple(dict.fromkeys((*found, batch)))


def near(count: int, batch: int) -> tuple[int, ...]:
    """Divisors of the batch closest to half and to twice `count`."""
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    found = (
        min(divisors, key=lambda d: (abs(math.log(d / goal)), -d))
        for goal in (count / 2, 2 * count)
    )
    return tuple(dict.fromkeys(d for d in found if d != count))


def stage_counts(cluster: Cluster, layers: int) -> tuple[int, ...]:
    """Numbers of stages to try."""
    return tuple(range(2, min(layers, cluster.num_devices, MOST_STAGES) + 1))


def check_stages(cluster: Cluster, asked: int | None, layers: int) -> None:
    """Refuses a number of stages that is not possible.

    Raises:
        PlanError: if it is below 2, or there are fewer layers or devices.
    """
    if asked is None:
        return
    host, devices = cluster.devices_per_host, cluster.num_devices
    if asked < 2:
        raise PlanError(
            "a pipeline has at least 2 stages", kind="bad-option", where="pipeline",
            remedy="ask for 2 stages or more, or for 'off'",
        )  # fmt: skip
    if asked > layers:
        raise PlanError(
            f"{asked} stages, but the program has {layers} layers between which it can be cut",
            kind="bad-option", where="pipeline", remedy=f"ask for at most {layers} stages",
        )  # fmt: skip
    if devices < 2:
        raise PlanError(
            "1 device has no room for stages", kind="bad-option", where="pipeline",
            remedy="use 2 devices or more, or ask for 'off'",
        )  # fmt: skip
    if asked > devices:
        raise PlanError(
            f"{asked} stages cannot share {devices} devices in hosts of {host}",
            kind="bad-option", where="pipeline", remedy=f"ask for at most {devices} stages",
        )  # fmt: skip
