"""Links between groups of devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel import Cluster, parse_cluster
from planner.pipeline.divide.transfers import entry_s, links_of

HOSTS = parse_cluster("16xv100-16gb:8")


def seconds(sizes: tuple[int, ...], cluster: Cluster = HOSTS, bytes_: float = 1e9) -> np.ndarray:
    """Seconds between each two groups of some bytes, a part of which each device sends."""
    links, n = links_of(sizes, cluster), len(sizes)
    index = np.indices((n, n))
    parts = bytes_ / np.minimum.outer(sizes, sizes)
    return links.transfer_s(index[0], index[1], parts)


def test_groups_of_one_host_use_its_links():
    found = seconds((4, 4, 4, 4))
    near, far = found[0, 1], found[1, 2]
    assert near == found[2, 3] == found[1, 0]
    assert far > 10 * near
    assert seconds((2, 2, 4, 8))[0, 1] < far


def test_the_cards_of_a_host_are_shared_by_the_devices_that_send():
    network = HOSTS.network
    assert network.shared_by_devices == 8
    for sizes in ((8, 8), (8, 4, 4), (1, 7, 8)):
        least = 1e9 / network.bandwidth_bytes_per_s
        found = seconds(sizes)
        assert found[0, 1 if sizes == (8, 8) else 2] == pytest.approx(least, rel=0.01)


def test_a_switch_that_spans_hosts_makes_them_one_island():
    island = replace(HOSTS, domain=16)
    assert seconds((8, 8), island)[0, 1] < seconds((8, 8))[0, 1] / 10


@pytest.mark.parametrize("sizes", [(8, 8), (4, 4, 8), (2, 6, 4, 4), (8, 4, 4), (1, 7, 8)])
def test_the_least_time_into_a_stage_is_that_of_the_links(sizes: tuple[int, ...]):
    across = np.array([0.0, 1e9])
    both = seconds(sizes)
    for s in range(1, len(sizes)):
        first = sum(sizes[:s])
        found = entry_s(HOSTS, first, sizes[s], across)
        assert found[0] == 0.0
        there_and_back = both[s - 1, s] + both[s, s - 1]
        assert found[1] <= there_and_back * (1 + 1e-9)
        if sizes[s - 1] >= sizes[s]:
            assert found[1] == pytest.approx(there_and_back)
