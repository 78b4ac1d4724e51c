"""The space of pipelines on a cluster: sizes of sub-meshes, numbers of stages and micro-batches."""

from __future__ import annotations

import math

from costmodel import Cluster

from ...common.errors import PlanError

MOST_STAGES = 16
SMALL = 16  # devices, or hosts, up to which sub-meshes of every size are tried
FEWEST_COUNT = 4


def anchors(cluster: Cluster) -> tuple[int, ...]:
    """Sizes of sub-meshes to price the whole program on: parts of a host, or whole hosts."""
    found = [d for d in sizes(cluster) if cluster.devices_per_host % d == 0 or (
        d % cluster.devices_per_host == 0 and cluster.num_devices % d == 0)]  # fmt: skip
    return tuple(dict.fromkeys((*found, sizes(cluster)[-1])))  # sizes between are interpolated


def sizes(cluster: Cluster) -> tuple[int, ...]:
    """Devices of the sub-meshes to choose from.

    All sizes within a host and of whole hosts where these are few; else those that divide a host,
    or the cluster.
    """
    host, hosts, devices = cluster.devices_per_host, cluster.num_hosts, cluster.num_devices
    inside = [d for d in range(1, host + 1) if devices <= SMALL or host % d == 0]
    across = [host * k for k in range(2, hosts) if hosts <= SMALL or hosts % k == 0]
    return tuple(d for d in (*inside, *across) if devices / (2 * MOST_STAGES) <= d < devices)


def counts(batch: int, asked: int | None) -> tuple[int, ...]:
    """Numbers of micro-batches to choose from: all divisors of the batch."""
    every = tuple(d for d in range(1, batch + 1) if batch % d == 0)
    return (asked,) if asked is not None else every


def priced_counts(every: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of micro-batches to price the whole program at: about four times apart.

    Those in between are interpolated.
    """
    found: list[int] = []
    goal = float(min(FEWEST_COUNT, every[-1]))
    while goal <= every[-1]:
        found.append(min(every, key=lambda d: (abs(math.log(d / goal)), -d)))
        goal *= 4
    return tuple(dict.fromkeys((*found, every[-1])))


def stage_counts(cluster: Cluster, layers: int) -> tuple[int, ...]:
    """Numbers of stages to try."""
    return tuple(range(2, min(layers, cluster.num_devices, MOST_STAGES) + 1))


def group_counts(cluster: Cluster, stages: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of equal groups of devices on which stages run in turn."""
    return tuple(p for p in stages if cluster.num_devices % p == 0
                 and cluster.num_devices // p in sizes(cluster))  # fmt: skip


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
