"""Hand-written pipelines: equal groups of devices, and stages made equal by a simple rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from .run_costs import Shares

Places = tuple[int, ...]


def hand_written(
    shares: Shares, devices: int, sizes: Sequence[int], stages: Sequence[int]
) -> dict[tuple[str, int], Places]:
    """Divisions (rule, number of stages) -> places, for numbers of stages that divide the devices.

    Args:
        shares: shares of the program's slots.
        devices: number of devices.
        sizes: devices of the sub-meshes to choose from.
        stages: numbers of stages to choose from.
    """
    found: dict[tuple[str, int], Places] = {}
    for p in stages:
        if devices % p or devices // p not in sizes:
            continue
        for name, rule in RULES.items():
            places = rule(shares, p)
            rises = all(a < b for a, b in pairwise(places))
            if rises and places not in (found.get((other, p)) for other in RULES):
                found[name, p] = places
    return found


def equal_layers(shares: Shares, count: int) -> Places:
    """Stages with equal numbers of layers.

    The iterations of the longest loop are the layers, if there is one; the slots before it are in
    the first stage, those after it in the last.
    """
    first, length = _stack(shares)
    if length < count:
        return tuple(round(k * (shares.count - 1) / count) for k in range(count + 1))
    cuts = [_nearest(shares, first + length * k // count) for k in range(1, count)]
    return (0, *cuts, shares.count - 1)


def equal_operations(shares: Shares, count: int) -> Places:
    """Stages with equal numbers of slots."""
    slots = shares.places[-1]
    cuts = [_nearest(shares, k * slots / count) for k in range(1, count)]
    return (0, *cuts, shares.count - 1)


def equal_work(shares: Shares, count: int) -> Places:
    """Stages with equal floating-point operations."""
    work = [shares.chain.work[place] for place in shares.places]
    goals = [k * work[-1] / count for k in range(1, count)]
    cuts = [min(range(shares.count), key=lambda j: abs(work[j] - goal)) for goal in goals]
    return (0, *cuts, shares.count - 1)


def _nearest(shares: Shares, slot: float) -> int:
    return min(range(shares.count), key=lambda j: abs(shares.places[j] - slot))


def _stack(shares: Shares) -> tuple[int, int]:
    """First slot and length of the longest loop over layers."""
    best = first = 0
    at = 0
    slots = shares.chain.slots
    for k in range(1, len(slots) + 1):
        if k == len(slots) or slots[k].number != slots[at].number:
            if k - at > best:
                first, best = at, k - at
            at = k
    return first, best


RULES: Mapping[str, Callable[[Shares, int], Places]] = MappingProxyType(
    {
        "equal layers": equal_layers,
        "equal operations": equal_operations,
        "equal work": equal_work,
    }
)
