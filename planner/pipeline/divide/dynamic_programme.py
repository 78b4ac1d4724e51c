"""Divides a chain into stages, their devices and recomputation, by dynamic programming.

With t_s the seconds of stage s for one micro-batch, u_s the part of them in which other stages may
have to wait for it, c_s those of receiving its input and sending its gradient back, and m
micro-batches, the step of a pipeline is

    sum of u_s + sum of c_s + (m - 1) P
    P = max over s of t_s, c_s / 2, and (u_s + sum over later stages r of u_r + c_r) / h_s

where stage s has at most h_s micro-batches in flight; in 1F1B h_s is the number of stages left.
Under a limit L of t_s and c_s / 2, the least sum follows from

    F[e, i, k] = min over j > i, d, kind:  u[d, kind](i, j) + c_i + F[e - 1, j, k - d]

over e stages that begin at place i on k devices, all of which fit in memory; F[e, i, k] - c_i is
the round trip of the first of them. In F, c_i is that of a stage with no fewer devices before it.
`divide` narrows an interval of L: with F at its upper end and P at least its lower end, no division
within it is better than the sum of the two. Where that is not sharp, `divisions` finds the best.
Source: Zheng et al., Alpa, OSDI 2022, section 5.2, with memory, transfers and
recomputation in the recursion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..schedule import ONE_EACH, Turns
from .run_costs import Costs

Floats = NDArray[np.float64]
EXACT = 1e-3  # relative: `divide` may return a division that is longer than the shortest by this
MOST_NODES = 200_000  # stages that `divisions` looks at
Option = tuple[int, str]  # devices of a stage, and its recomputation
# Bound of a division's step; its places, devices and recomputation so far; stages that are left,
# -1 where the bound is the step; units of devices that are left; sum and pace so far.
_Begun = tuple[
    float, tuple[int, ...], tuple[int, ...], tuple[str, ...], int, int, float, float
]  # fmt: skip


class TooManyError(Exception):
    """There are too many divisions to look at."""


@dataclass(frozen=True)
class Division:
    """A pipeline's stages: places, devices, kinds of recomputation, and the estimated step.

    slowest_s: the pace P at which micro-batches follow each other.
    turns: how stages take turns on groups of devices.
    """

    places: tuple[int, ...]
    sizes: tuple[int, ...]
    recompute: tuple[str, ...]
    step_s: float
    slowest_s: float
    turns: Turns = ONE_EACH

    @property
    def key(self) -> tuple[object, ...]:
        """What it is, whatever it costs."""
        return self.places, self.sizes, self.recompute, self.turns


@dataclass(frozen=True)
class Machine:
    """Devices in hosts.

    sizes: devices of the sub-meshes to choose from.
    """

    devices: int
    per_host: int
    sizes: tuple[int, ...]

    def fits_at(self, first: int, size: int) -> bool:
        """Whether a sub-mesh from device `first` lies in one host or fills hosts."""
        at = first % self.per_host
        return at + size <= self.per_host or not (at or size % self.per_host)


@dataclass(frozen=True)
class Space:
    """Divisions to choose from, with their costs.

    costs: micro-batches in flight -> costs of every run of slots, by option; a run that cannot be
        a stage has infinite seconds.
    transfer_s: (first device of a stage, its devices or those of the one before if they are fewer)
        -> seconds of its input and of the gradient that it sends back, at each place.
    in_flight: (stages from a stage to the last, micro-batches of a step) -> micro-batches in
        flight on the stage.
    """

    machine: Machine
    microbatches: int
    costs: Callable[[int], Mapping[Option, Costs]]
    transfer_s: Callable[[int, int], Floats]
    in_flight: Callable[[int, int], int] = min

    def flight(self, left: int) -> int:
        """Micro-batches in flight on the stage with `left` stages from it to the last."""
        return self.in_flight(left, self.microbatches)

    def estimated(
        self, places: Sequence[int], sizes: Sequence[int], recompute: Sequence[str] = ()
    ) -> Division:
        """A division with given places and sub-meshes.

        Args:
            places: first place of every stage, and the last place.
            sizes: devices of every stage.
            recompute: recomputation of every stage; if empty, the fastest that fits.
        """
        p, first, slowest, total = len(sizes), 0, 0.0, 0.0
        fills, moved, kinds = list[float](), list[float](), list[str]()
        for s, at in enumerate(pairwise(places)):
            rows = {
                kind: costs for (size, kind), costs in self.costs(self.flight(p - s)).items()
                if size == sizes[s] and (not recompute or kind == recompute[s])
            }  # fmt: skip
            pace_s, kind = min((float(costs.pace_s[at]), kind) for kind, costs in rows.items())
            kinds.append(kind)
            fills.append(float(rows[kind].fill_s[at]))
            moved.append(float(self.transfer_s(first, min(sizes[max(s - 1, 0) : s + 1]))[at[0]]))
            slowest = max(slowest, pace_s, moved[-1] / 2)
            first += sizes[s]
        for s in reversed(range(p)):
            total += fills[s]
            if self.flight(p - s) < self.microbatches:
                slowest = max(slowest, total / self.flight(p - s))
            total += moved[s]
        step_s = total + (self.microbatches - 1) * slowest if math.isfinite(slowest) else math.inf
        return Division(tuple(places), tuple(sizes), tuple(kinds), step_s, slowest)


def divide(
    space: Space, stages: Sequence[int], below_s: float = math.inf
) -> tuple[Division | None, float]:
    """The shortest division, to within `EXACT`.

    Args:
        space: divisions to choose from.
        stages: numbers of stages to choose from.
        below_s: steps from here on are of no use [s].

    Returns:
        The division, None if none is below the limit; and a lower bound of all divisions' steps.
    """
    best, bound_s = _narrowed(space, stages, below_s)
    best_s = best.step_s if best else below_s
    if bound_s >= best_s * (1 - EXACT):
        return best, bound_s
    try:  # where a stage takes from a smaller one, its transfers are longer than F has them
        best = next(divisions(space, stages, best_s), best)
    except TooManyError:
        return best, bound_s
    return best, best.step_s if best else below_s


def _narrowed(space: Space, stages: Sequence[int], below_s: float) -> tuple[Division | None, float]:
    """The shortest of the divisions with the least F in some intervals of the pace.

    Arguments and results as of `divide`.
    """
    table = _Table(space, stages)
    least_s = table.least_pace_s()
    if not math.isfinite(least_s):
        return None, math.inf
    m, best, best_s = space.microbatches, None, below_s
    sum_s, pace_s = table.under(math.inf)
    if not math.isfinite(sum_s):
        return None, math.inf
    if table.found.step_s < best_s:
        best, best_s = table.found, table.found.step_s
    queue = [(sum_s + (m - 1) * least_s, least_s, pace_s)]
    while queue:
        bound, low, high = heappop(queue)
        if bound >= best_s * (1 - EXACT):
            return best, min(bound, best_s)
        middle = (low + high) / 2
        sum_s, pace_s = table.under(middle)
        if math.isfinite(sum_s):
            if table.found.step_s < best_s:
                best, best_s = table.found, table.found.step_s
            heappush(queue, (sum_s + (m - 1) * low, low, min(pace_s, middle)))
        upper = bound - (m - 1) * low + (m - 1) * middle  # the sum of the whole interval
        heappush(queue, (upper, middle, high))
        if high - low <= EXACT * low / 4:
            return best, min(bound, best_s)
    return best, best_s


def divisions(space: Space, stages: Sequence[int], below_s: float) -> Iterator[Division]:
    """All divisions with steps below a limit, the shortest first.

    Arguments as of `divide`. Stages are added from the first on; of the divisions begun, the one
    with the least bound of its step comes first.

    Raises:
        TooManyError: after `MOST_NODES` stages.
    """
    space = replace(space, costs=cache(space.costs), transfer_s=cache(space.transfer_s))
    table = _Table(space, stages)
    if not math.isfinite(table.least_pace_s()) or not math.isfinite(table.under(math.inf)[0]):
        return
    last, nodes = table.count - 1, 0
    todo: list[_Begun] = [
        (0.0, (0,), (), (), p, table.devices, 0.0, 0.0) for p in sorted(table.stages)
    ]
    while todo:
        bound_s, places, sizes, kinds, e, k, sum_s, pace_s = heappop(todo)
        if e < 0:
            yield Division(places, sizes, kinds, bound_s, pace_s)
            continue
        if e == 0:
            one = space.estimated(places, sizes, kinds)
            if one.step_s < below_s:
                heappush(todo, (one.step_s, places, sizes, kinds, -1, 0, 0.0, one.slowest_s))
            continue
        nodes += (last - places[-1]) * len(table.rows[e])
        if nodes > MOST_NODES:
            raise TooManyError
        begun = bound_s, places, sizes, kinds, e, k, sum_s, pace_s
        for longer in _with_next_stage(table, begun):
            if longer[0] < below_s:
                heappush(todo, longer)


def _with_next_stage(table: _Table, begun: _Begun) -> Iterator[_Begun]:
    """A division that was begun, with each stage that may come next."""
    _, places, sizes, kinds, e, k, sum_s, pace_s = begun
    i, m = places[-1], table.space.microbatches
    for (size, kind), costs in table.rows[e].items():
        rest = k - size // table.unit
        if rest < 0 or not math.isfinite(table.moved[size][i, k]):
            continue
        moved_s = table.moved[min(*sizes[-1:], size, size)][i, k]
        total = sum_s + moved_s + costs.fill_s[i]
        worst = np.maximum(costs.pace_s[i], max(pace_s, moved_s / 2))
        after_s = table.least[e - 1, :, rest]
        for j in np.flatnonzero(np.isfinite(total + worst + after_s)).tolist():
            least_s = max(worst[j], table.paces[e - 1][j, rest])
            ends_s = float(total[j] + after_s[j] + (m - 1) * least_s)
            yield (ends_s, (*places, j), (*sizes, size), (*kinds, kind), e - 1, rest,
                   float(total[j]), float(worst[j]))  # fmt: skip


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


class _Table:
    """Least sums over divisions under a limit of the pace; devices count in units of `unit`."""

    def __init__(self, space: Space, stages: Sequence[int]) -> None:
        self.space = space
        machine = space.machine
        self.stages = [p for p in stages if p <= machine.devices]
        self.most = max(self.stages, default=0)
        self.rows = {e: space.costs(space.flight(e)) for e in range(1, self.most + 1)}
        self.sizes = sorted({size for rows in self.rows.values() for size, _ in rows})
        self.unit = math.gcd(machine.devices, *self.sizes)
        self.devices = machine.devices // self.unit
        self.count = len(space.transfer_s(0, machine.devices))
        self.moved = {size: self._moved(size) for size in self.sizes}
        self.least = np.empty(0)
        self.choice = np.empty(0)
        self.paces = list[Floats]()  # least pace, by stages; first place and devices of the first
        self.found = Division((), (), (), math.inf, math.inf)

    def _moved(self, size: int) -> Floats:
        """Seconds of the transfers into a stage, by place and devices from it to the last."""
        machine = self.space.machine
        found = np.full((self.count, self.devices + 1), np.inf)
        for k in range(size // self.unit, self.devices + 1):
            first = machine.devices - k * self.unit
            if machine.fits_at(first, size):
                found[:, k] = self.space.transfer_s(first, size)
        return found

    def _own(self, left: int, size: int, limit: float) -> Floats:
        """Least `fill_s` of each run as a stage of `size` devices, paced within the limit."""
        found = np.full((self.count, self.count), np.inf)
        for (devices, _), costs in self.rows[left].items():
            if devices == size:
                fits = np.where(costs.pace_s <= limit, costs.fill_s, np.inf)
                np.minimum(found, fits, out=found)
        return found

    def least_pace_s(self) -> float:
        """Least of the greatest t_s and c_s / 2 over all divisions."""
        least = np.full((self.count, self.devices + 1), np.inf)
        least[-1, 0] = 0.0
        self.paces, found = [least], math.inf
        for e in range(1, self.most + 1):
            now = np.full_like(least, np.inf)
            for size in self.sizes:
                d = size // self.unit
                own = np.full((self.count, self.count), np.inf)
                for (devices, _), costs in self.rows[e].items():
                    if devices == size:
                        np.minimum(own, costs.pace_s, out=own)
                after = least[:, : self.devices + 1 - d]
                worst = np.maximum(own[:, :, None], after[None, :, :]).min(axis=1)
                worst = np.maximum(worst, self.moved[size][:, d:] / 2)
                now[:, d:] = np.minimum(now[:, d:], worst)
            least = now
            self.paces.append(now)
            if e in self.stages:
                found = min(found, float(least[0, -1]))
        return found

    def under(self, limit: float) -> tuple[float, float]:
        """The least sum of divisions with a pace within the limit, and the pace of that division.

        Both are infinite if there is none.
        """
        shape = (self.most + 1, self.count, self.devices + 1)
        self.least = least = np.full(shape, np.inf)
        self.choice = choice = np.zeros((*shape, 2), dtype=np.int32)
        least[0, -1, 0] = 0.0
        for e in range(1, self.most + 1):
            flight = self.space.flight(e)
            most = limit * flight if flight < self.space.microbatches else math.inf
            for size in self.sizes:
                own = self._own(e, size, limit)
                d = size // self.unit
                after = least[e - 1, :, : self.devices + 1 - d]
                if not np.isfinite(own).any() or not np.isfinite(after).any():
                    continue
                trips = own[:, :, None] + after[None, :, :]
                j = trips.argmin(axis=1)
                trip = np.take_along_axis(trips, j[:, None, :], axis=1)[:, 0, :]
                moved = self.moved[size][:, d:]
                total = np.where((trip <= most) & (moved / 2 <= limit), trip + moved, np.inf)
                better = total < least[e, :, d:]
                least[e, :, d:] = np.where(better, total, least[e, :, d:])
                choice[e, :, d:, 0] = np.where(better, j, choice[e, :, d:, 0])
                choice[e, :, d:, 1] = np.where(better, size, choice[e, :, d:, 1])
        sum_s, p = min(((float(least[p, 0, -1]), p) for p in self.stages), default=(math.inf, 0))
        if not math.isfinite(sum_s):
            return math.inf, math.inf
        self.found = self._lifted(p, limit)
        return sum_s, self.found.slowest_s

    def _lifted(self, p: int, limit: float) -> Division:
        """The division of p stages with the least sum."""
        places, sizes, kinds = [0], list[int](), list[str]()
        i, k = 0, self.devices
        for e in range(p, 0, -1):
            j, size = (int(x) for x in self.choice[e, i, k])
            fits = [
                (float(costs.fill_s[i, j]), kind)
                for (devices, kind), costs in self.rows[e].items()
                if devices == size and costs.pace_s[i, j] <= limit
            ]
            kinds.append(min(fits)[1])
            sizes.append(size)
            places.append(j)
            i, k = j, k - size // self.unit
        return self.space.estimated(places, sizes, kinds)
