"""Divides a chain into stages, their devices and recomputation, by dynamic programming.

With t_s the seconds of stage s for one micro-batch, c_s those of receiving its input and sending
its gradient back, and m micro-batches, the step of a pipeline is

    sum of t_s + sum of c_s + (m - 1) P
    P = max over s of t_s, c_s, and (t_s + sum over later stages r of t_r + c_r) / h_s

where stage s has at most h_s micro-batches in flight; in 1F1B h_s is the number of stages left.
For a limit on P the least sum follows from

    F[e, i, k] = min over j > i, d, kind:  t[d, kind](i, j) + c_i + F[e - 1, j, k - d]

over e stages that begin at place i on k devices, all of which fit in memory; F[e, i, k] - c_i is
the round trip of the first of them. Limits are tried from the least feasible one upwards.
Source: Zheng et al., Alpa, OSDI 2022, section 5.2, with memory, transfers and
recomputation in the recursion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .run_costs import Costs

Floats = NDArray[np.float64]
# Number of limits of P to try: above the least feasible one, then near the best.
LIMITS, SLOWEST, REFINED = 20, 12.0, 6


@dataclass(frozen=True)
class Division:
    """A pipeline's stages: places, devices, kinds of recomputation, and the estimated step.

    slowest_s: the pace P at which micro-batches follow each other.
    chunks: stages on each group of devices, see `simulated.PipelineShape`.
    """

    places: tuple[int, ...]
    sizes: tuple[int, ...]
    recompute: tuple[str, ...]
    step_s: float
    slowest_s: float
    chunks: int = 1

    def hoped_s(self, microbatches: int) -> float:
        """The step if weight gradients fill most of the bubble [s]."""
        paced_s = microbatches * self.slowest_s
        return paced_s + (self.step_s - paced_s) / 3


@dataclass(frozen=True)
class Machine:
    """Devices in hosts, and the memory limit of one.

    sizes: devices of the sub-meshes to choose from.
    """

    devices: int
    per_host: int
    sizes: tuple[int, ...]
    limit_bytes: float

    def fits_at(self, first: int, size: int) -> bool:
        """Whether a sub-mesh from device `first` lies in one host or fills hosts."""
        at = first % self.per_host
        return at + size <= self.per_host or not (at or size % self.per_host)


def divide(
    costs: Mapping[tuple[int, str], Costs],
    transfer_s: Mapping[int, Floats],
    machine: Machine,
    microbatches: int,
    *,
    stages: Sequence[int],
    in_flight: Callable[[int, int], int] = min,
) -> list[Division]:
    """The division with the best estimate, and the best for other numbers of stages.

    Args:
        costs: costs of every run of slots, by (devices, recomputation).
        transfer_s: seconds of the transfers at each place, activations and gradients, by devices of
            the receiving stage.
        machine: devices and memory limit.
        microbatches: number in a step.
        stages: numbers of stages to try.
        in_flight: (stages from a stage to the last, micro-batches of a step) -> micro-batches in
            flight on the stage.
    """
    table = _Table(costs, transfer_s, machine, microbatches, max(stages), in_flight)
    # device-seconds of all stages are at least those of the whole on its best sub-mesh
    least = min(one.micro_s[0, -1] * size for (size, _), one in costs.items()) / machine.devices
    best: dict[int, Division] = {}
    limits = [least * SLOWEST ** (k / (LIMITS - 1)) for k in range(LIMITS)]
    for again in (False, True):
        for limit in _around(limits, best) if again else limits:
            fastest = min((one.step_s for one in best.values()), default=math.inf)
            if (microbatches - 1) * limit >= fastest:
                break
            for count, found in table.under(limit, stages):
                if count not in best or found.step_s < best[count].step_s:
                    best[count] = found
    return [best[count] for count in sorted(best)]


def estimated(
    places: Sequence[int],
    sizes: Sequence[int],
    costs: Mapping[tuple[int, str], Costs],
    transfer_s: Mapping[int, Floats],
    machine: Machine,
    microbatches: int,
    in_flight: Callable[[int, int], int] = min,
) -> Division:
    """A division with given places and sub-meshes, and the best recomputation of each stage.

    Where nothing fits, stages have recomputation `none`. Arguments as of `divide`.
    """
    p = len(sizes)
    flight = [in_flight(p - s, microbatches) for s in range(p)]
    micro, kinds = list[float](), list[str]()
    for s, at in enumerate(pairwise(places)):
        fit = [
            (float(one.micro_s[at]), kind)
            for (size, kind), one in costs.items()
            if size == sizes[s]
            and one.held_bytes[at] + (flight[s] - 1) * one.more_bytes[at] <= machine.limit_bytes
        ]
        micro.append(min(fit, default=(float(costs[sizes[s], "none"].micro_s[at]), ""))[0])
        kinds.append(min(fit)[1] if fit else "none")
    moved = [float(transfer_s[d][c]) for d, c in zip(sizes, places, strict=False)]
    trips = [
        (sum(micro[s:]) + sum(moved[s + 1 :])) / flight[s]
        for s in range(p) if flight[s] < microbatches
    ]  # fmt: skip
    slowest = max(*micro, *moved, *trips)
    step_s = sum(micro) + sum(moved) + (microbatches - 1) * slowest
    return Division(tuple(places), tuple(sizes), tuple(kinds), step_s, slowest)


def least_most(seconds: Sequence[Floats]) -> tuple[tuple[int, ...], float]:
    """Places with the least maximum of some stages' seconds, and that maximum.

    Args:
        seconds: for every stage the seconds of each run [first place, last place]; infinite if
            none.
    """
    n = len(seconds[0])
    least = np.full((len(seconds) + 1, n), np.inf)
    least[-1, n - 1] = 0.0
    choice = np.zeros((len(seconds), n), dtype=np.int64)
    for s in reversed(range(len(seconds))):
        worst = np.maximum(seconds[s], least[s + 1][None, :])
        choice[s] = worst.argmin(axis=1)
        least[s] = worst.min(axis=1)
    places = [0]
    for s in range(len(seconds)):
        places.append(int(choice[s, places[-1]]))
    return tuple(places), float(least[0, 0])


def _around(limits: Sequence[float], best: Mapping[int, Division]) -> list[float]:
    """Limits next to the slowest stage of the best division."""
    if not best:
        return []
    slowest = min(best.values(), key=lambda one: one.step_s).slowest_s
    low = max((limit for limit in limits if limit < slowest), default=slowest / 2)
    return [low + (slowest - low) * k / REFINED for k in range(1, REFINED)]


class _Table:
    def __init__(
        self,
        costs: Mapping[tuple[int, str], Costs],
        transfer_s: Mapping[int, Floats],
        machine: Machine,
        microbatches: int,
        most: int,
        in_flight: Callable[[int, int], int],
    ) -> None:
        self.machine, self.count, self.most = machine, microbatches, most
        self.sizes = tuple(sorted({size for size, _ in costs}))
        self.transfer_s = [transfer_s[size] for size in self.sizes]
        self.kinds = tuple(dict.fromkeys(kind for _, kind in costs))
        n = len(next(iter(transfer_s.values())))
        self.flight = [in_flight(e, microbatches) if e else 0 for e in range(most + 1)]
        shape = (most + 1, len(self.sizes), n, n)
        self.best = np.full(shape, np.inf)
        self.kind = np.zeros(shape, dtype=np.int8)
        for e in range(1, most + 1):
            flight = self.flight[e]
            for (size, kind), one in costs.items():
                d, k = self.sizes.index(size), self.kinds.index(kind)
                held = one.held_bytes + (flight - 1) * one.more_bytes
                seconds = np.where(held <= machine.limit_bytes, one.micro_s, np.inf)
                better = seconds < self.best[e, d]
                self.best[e, d] = np.where(better, seconds, self.best[e, d])
                self.kind[e, d] = np.where(better, k, self.kind[e, d])

    def under(self, limit: float, stages: Sequence[int]) -> list[tuple[int, Division]]:
        """The best pipelines with P at most `limit`."""
        n, devices = self.best.shape[-1], self.machine.devices
        least = np.full((self.most + 1, n, devices + 1), np.inf)
        least[0, n - 1, 0] = 0.0
        choice = np.zeros((self.most + 1, n, devices + 1, 2), dtype=np.int16)
        unit = math.gcd(*self.sizes)
        for e in range(1, self.most + 1):
            for d, size in enumerate(self.sizes):
                own = np.where(self.best[e, d] <= limit, self.best[e, d], np.inf)
                if not np.isfinite(own).any():
                    continue
                moved = self.transfer_s[d]
                most = limit * self.flight[e] if self.flight[e] < self.count else np.inf
                for k in range(size, devices + 1, unit):
                    if not self.machine.fits_at(devices - k, size):
                        continue
                    after = least[e - 1, :, k - size]
                    if not np.isfinite(after).any():
                        continue
                    trip = own + after[None, :]
                    enters = np.where(moved <= limit, moved, np.inf)[:, None]
                    total = np.where(trip <= most, trip, np.inf) + enters
                    j = np.argmin(total, axis=1)
                    found = total[np.arange(n), j]
                    better = found < least[e, :, k]
                    least[e, better, k] = found[better]
                    choice[e, better, k, 0] = j[better]
                    choice[e, better, k, 1] = d
        return [
            (count, self._lifted(choice, count, least))
            for count in stages
            if np.isfinite(least[count, 0, devices])
        ]

    def _lifted(self, choice: NDArray[np.int16], count: int, least: Floats) -> Division:
        places, sizes, kinds, slowest = [0], list[int](), list[str](), 0.0
        i, k = 0, self.machine.devices
        for e in range(count, 0, -1):
            j, d = int(choice[e, i, k, 0]), int(choice[e, i, k, 1])
            moved = float(self.transfer_s[d][i])
            slowest = max(slowest, float(self.best[e, d, i, j]), moved)
            if self.flight[e] < self.count:
                slowest = max(slowest, (float(least[e, i, k]) - moved) / self.flight[e])
            kinds.append(self.kinds[int(self.kind[e, d, i, j])])
            sizes.append(self.sizes[d])
            places.append(j)
            i, k = j, k - self.sizes[d]
        step_s = float(least[count, 0, self.machine.devices]) + (self.count - 1) * slowest
        return Division(tuple(places), tuple(sizes), tuple(kinds), step_s, slowest)
