"""Links between groups of devices that follow each other, and the seconds of transfers over them.

Every device of the smaller of two groups sends or receives a part. Groups within an island (a host,
or the hosts that a switch joins) use its links; others use the network, whose cards are shared by
the devices that send at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel import Cluster
from profiles import Link

from ..schedule import Links

Floats = NDArray[np.float64]


def links_of(sizes: Sequence[int], cluster: Cluster) -> Links:
    """Links between each two groups, for one device that sends.

    Args:
        sizes: devices of every group, in order.
        cluster: all devices.
    """
    starts = [sum(sizes[:s]) for s in range(len(sizes))]
    latency: list[tuple[float, ...]] = []
    bandwidth: list[tuple[float, ...]] = []
    for a, n in zip(starts, sizes, strict=True):
        links = [
            _link(cluster, near=min(a, b) // cluster.island == (max(a + n, b + m) - 1)
                  // cluster.island)
            for b, m in zip(starts, sizes, strict=True)
        ]  # fmt: skip
        latency.append(tuple(link.latency_s for link in links))
        bandwidth.append(
            tuple(_rate(link, min(m, n)) for link, m in zip(links, sizes, strict=True))
        )
    return Links(latency_s=tuple(latency), bandwidth_bytes_per_s=tuple(bandwidth))


def crossed(group: Sequence[int]) -> tuple[int, ...]:
    """For each stage the second of the two neighbouring groups between which its input is sent.

    0 for the first stage, for one on the group of the one before, and where groups are no
    neighbours: no transfer is counted there, so that bounds hold.

    Args:
        group: group of devices of each stage.
    """
    before = (group[0], *group)
    return tuple(max(a, b) if abs(a - b) == 1 else 0 for a, b in zip(before, group, strict=False))


def entry_s(cluster: Cluster, first: int, size: int, across_bytes: Floats) -> Floats:
    """Least seconds to receive a stage's input and send its gradient back; 0 where there is none.

    Args:
        cluster: all devices.
        first: first device of the stage.
        size: devices of the stage; the one before is taken to be no smaller.
        across_bytes: bytes of the input, at each place.
    """
    link = _link(cluster, near=first % cluster.island > 0)
    seconds = 2 * (link.latency_s + across_bytes / (size * _rate(link, size)))
    return np.where((across_bytes > 0) & (first > 0), seconds, 0.0)


def _link(cluster: Cluster, *, near: bool) -> Link:
    return cluster.intra_host if near else cluster.network


def _rate(link: Link, senders: int) -> float:
    """Bandwidth of one of some devices that send at once [byte/s]."""
    return link.bandwidth_bytes_per_s / min(link.shared_by_devices, senders)
