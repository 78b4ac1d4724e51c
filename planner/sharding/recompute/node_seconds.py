"""Seconds of nodes and of copies to the host, from which choices of what is kept are made."""

from __future__ import annotations

from collections.abc import Callable

from costmodel import Cluster, ComputeModel
from ir import TO_HOST

from ..cost.least_seconds import least_each_s
from ..problem.facts import Facts
from .frontier import SecondsOf


def node_seconds(facts: Facts, machine: Cluster) -> SecondsOf:
    """Seconds of each node with all it contains, split in its best way over all devices."""
    ops = facts.flat.ops
    spent: dict[tuple[int, ...], float] = {}
    each = least_each_s(facts, ComputeModel(machine), machine.num_devices, range(len(ops)))
    for i, seconds in each.items():
        place = ops[i].place
        for end in range(1, len(place) + 1, 2):
            spent[place[:end]] = spent.get(place[:end], 0.0) + seconds * ops[i].weight
    return lambda place: spent.get(place, 0.0)


def host_copy_seconds(machine: Cluster) -> Callable[[float], float]:
    """Seconds of copying an amount, spread over all devices, to their hosts [byte]."""
    compute = ComputeModel(machine)
    return lambda nbytes: float(compute.host_copy_s(TO_HOST, nbytes / machine.num_devices))
