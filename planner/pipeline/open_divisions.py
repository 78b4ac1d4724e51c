"""The divisions of all pipelines, the one with the least lower bound first.

A queue holds the first stages of divisions, whose bounds hold for all that begin so, and another
one whole divisions. The least of both bounds all pipelines. Bounds of stages rise while that is
done, and those of divisions with them, each once it is the least. Schedules are simulated for many
divisions at once: the next ones of the queue.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import heappop, heappush, heapreplace, nsmallest
from itertools import pairwise

import numpy as np

from ..common.errors import IndivisibleError
from .divide.candidates import Candidates, flights_in_turn
from .divide.critical_paths import Tasks, least_of_schedules_s
from .divide.listing import Begun, Floors, Least, Listing, least_step_s
from .divide.listing_in_turn import ListingInTurn
from .divide.transfers import crossed
from .schedule import IN_FLIGHT, ONE_EACH, Turns, families, in_turns, take
from .stage_floors import LeastOfRuns, StageFloors

# Divisions that were begun, beyond which the rest is left.
MOST_LISTED = 200_000
# Divisions that are simulated at once, and how far above the least bound these may be.
AT_ONCE, AHEAD = 1000, 0.005
# Micro-batches, devices and places of a stage, micro-batches in flight, stages on its devices.
Unit = tuple[int, int, tuple[int, int], int, int]


@dataclass(frozen=True, order=True)
class Source:
    """Where divisions come from: `groups` is 0 where each has a group of devices of its own.

    count: number of micro-batches.
    groups, turns: groups on which stages take turns, and how.
    """

    count: int
    groups: int
    turns: Turns


@dataclass(frozen=True)
class Open:
    """A division that may be better than the best pipeline.

    moved_s: transfers of one micro-batch into each stage, and of its gradient back [s].
    family, flight: what sets the micro-batches in flight, and how many each stage has; empty as
        long as these do not count.
    """

    count: int
    places: tuple[int, ...]
    sizes: tuple[int, ...]
    turns: Turns
    moved_s: tuple[float, ...]
    family: str = ""
    flight: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What it is, whatever the micro-batches in flight."""
        return self.count, self.places, self.sizes, self.turns

    @property
    def group(self) -> tuple[int, ...]:
        """Group of devices of each stage."""
        return self.turns.group(len(self.sizes))

    def run(self, s: int) -> tuple[int, int]:
        """Places of a stage."""
        return self.places[s], self.places[s + 1]

    def left(self, s: int) -> int:
        """Stages from a stage to the last; all where they take turns."""
        return len(self.sizes) - (s if self.turns == ONE_EACH else 0)


@dataclass
class OpenDivisions:
    """The divisions that are left, and their bounds.

    schedules: names of those to choose from.
    counts, stages, turns: as of `begin`.
    listed: number of divisions that were begun below the limit; below 0 before `begin`.
    """

    candidates: Candidates
    floors: StageFloors
    schedules: tuple[str, ...]
    counts: Sequence[int] = ()
    stages: Sequence[int] = ()
    turns: Sequence[tuple[int, Turns]] = ()
    listed: int = -1
    _begun: list[tuple[float, int, Source, Begun | None, int]] = field(
        default_factory=list[tuple[float, int, Source, "Begun | None", int]]
    )
    _whole: list[tuple[float, int, Open]] = field(default_factory=list[tuple[float, int, Open]])
    _known: dict[tuple[int, int, int, int], tuple[LeastOfRuns, Floors]] = field(
        default_factory=dict[tuple[int, int, int, int], "tuple[LeastOfRuns, Floors]"]
    )
    _flights: dict[tuple[int, int, Turns], int] = field(
        default_factory=dict[tuple[int, int, Turns], int]
    )
    _rises: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    _chains: dict[int, tuple[int, Listing]] = field(default_factory=dict[int, tuple[int, Listing]])
    _turning: dict[Source, tuple[int, ListingInTurn]] = field(
        default_factory=dict[Source, tuple[int, ListingInTurn]]
    )
    _scheduled: dict[tuple[object, ...], tuple[int, float]] = field(
        default_factory=dict[tuple[object, ...], tuple[int, float]]
    )
    _limit_s: float = math.inf

    def begin(
        self, counts: Sequence[int], stages: Sequence[int], turns: Sequence[tuple[int, Turns]],
        limit_s: float,
    ) -> None:  # fmt: skip
        """Begins with all divisions.

        Args:
            counts: numbers of micro-batches.
            stages: numbers of stages.
            turns: (groups of devices, how stages take turns on them).
            limit_s: step from which on bounds need not be sharp [s].
        """
        self.counts, self.stages, self.turns = counts, stages, turns
        self.listed, self._limit_s = 0, limit_s
        for count in counts:
            with suppress(IndivisibleError):
                chain = Source(count, 0, ONE_EACH)
                for one in self._chain(count).begun():
                    self._push(chain, one, one.bound_s)
                for groups, each in turns:
                    if (
                        take(each, groups, count)
                        and groups * each.chunks < self.floors.shares.count
                    ):
                        source = Source(count, groups, each)
                        self._push(source, None, self._in_turn(source).least_s())

    @property
    def has_begun(self) -> bool:
        """Whether `least_s` bounds all divisions, also where none is left below the limit."""
        return self.listed >= 0

    @property
    def least_s(self) -> float:
        """Lower bound of all divisions that are left [s]."""
        queues = [queue for queue in (self._begun, self._whole) if queue]
        return min([self._limit_s, *(queue[0][0] for queue in queues)])

    def next(self, limit_s: float) -> Open | Unit | None:
        """What has the least bound: a division, which stays in the queue, or a stage to bound.

        Stages of what was begun are bounded before it is gone on with, which leaves far less.

        Returns:
            None if no bound is below the limit [s], or too many divisions were begun.
        """
        limit_s = min(limit_s, self._limit_s)
        while self.least_s < limit_s:
            bound_s = self._whole[0][0] if self._whole else math.inf
            if self._begun and self._begun[0][0] <= bound_s:
                if self.listed > MOST_LISTED:
                    return None
                unit = self._go_on()
                if unit is not None:
                    return unit
                continue
            _, number, one = self._whole[0]
            now_s = self.least_of_s(one)
            if now_s > bound_s:
                heapreplace(self._whole, (now_s, number, one))
                continue
            unit = self._unknown(one.count, one.turns, one)
            if unit is not None:
                return unit
            if self._is_scheduled(one):
                return one
            self._schedule_next(min(limit_s, bound_s * (1 + AHEAD)))
        return None

    def _unknown(self, count: int, turns: Turns, one: Open | Begun) -> Unit | None:
        """The stage with most devices of which no micro-batch was bounded, if any."""
        stages = len(one.sizes) + (one.left if isinstance(one, Begun) else 0)
        rows = [
            (count, size, at, self.flight(count, stages - s * (turns == ONE_EACH), turns),
             turns.chunks)
            for s, (size, at) in enumerate(zip(one.sizes, pairwise(one.places), strict=True))
        ]  # fmt: skip
        rest = [row for row in rows if not self.floors.is_passed(*row)]
        return max(rest, key=lambda row: row[1], default=None)

    def _of_loop(self, source: Source) -> Unit | None:
        """The loop over layers on a group of devices, if its rounds were not bounded."""
        shares, turns = self.floors.shares, source.turns
        core = shares.core((0, shares.count - 1))
        size = self.candidates.cluster.num_devices // source.groups
        flight = self.flight(source.count, source.groups * turns.chunks, turns)
        unit = source.count, size, core, flight, turns.chunks
        return None if len(shares.family(core)) == 1 or self.floors.is_passed(*unit) else unit

    def flight(self, count: int, left: int, turns: Turns) -> int:
        """Least number of micro-batches in flight on a stage, under any schedule to choose from.

        Args:
            count: number of micro-batches.
            left: stages from it to the last; all where they take turns.
            turns: how stages take turns.
        """
        key = count, left, turns
        if key not in self._flights:
            if turns == ONE_EACH:
                rows = [IN_FLIGHT[name](left, count) for name in families(self.schedules)]
            else:
                rows = [*flights_in_turn(count, left // turns.chunks, turns)]
            self._flights[key] = min(rows, default=1)
        return self._flights[key]

    def take(self) -> None:
        """Takes the division that is next out of the queue."""
        heappop(self._whole)

    def put(self, one: Open, bound_s: float = 0.0) -> None:
        """Puts a division into the queue, whose bound is at least `bound_s`."""
        self.listed += 1
        heappush(self._whole, (max(bound_s, self.least_of_s(one)), self.listed, one))

    def rose(self, count: int, size: int) -> None:
        """Takes note that bounds of stages of a size rose."""
        self._rises[count, size] += 1

    def _push(self, source: Source, one: Begun | None, bound_s: float) -> None:
        if bound_s < self._limit_s:
            self.listed += 1
            heappush(self._begun, (bound_s, self.listed, source, one, self._version(source)))

    def _version(self, source: Source) -> int:
        """Number of times that bounds of a source's stages rose."""
        if source.groups:
            size = self.candidates.cluster.num_devices // source.groups
            return self._rises[source.count, size]
        return sum(self._rises[source.count, size] for size in self.floors.sizes)

    def _go_on(self) -> Unit | None:
        """Goes on with the least of what was begun, or returns a stage of it to bound before."""
        bound_s, number, source, one, version = self._begun[0]
        now_version = self._version(source)
        is_all = one is None or not one.sizes  # paths bound what was begun as they are
        own = self._in_turn(source, afresh=is_all) if source.groups else self._chain(source.count)
        if one is None:
            assert isinstance(own, ListingInTurn)
            one = own.begun(bound_s)
        elif version != now_version:
            one = own.again(one)
        if one.bound_s > bound_s:
            heapreplace(self._begun, (one.bound_s, number, source, one, now_version))
            return None
        unit = self._unknown(source.count, source.turns, one)
        if not one.sizes and source.groups:
            unit = self._of_loop(source)
        if unit is not None:
            return unit
        heappop(self._begun)
        for longer in own.longer(one, self._limit_s):
            if longer.left:
                self._push(source, longer, longer.bound_s)
            else:
                self.put(self._opened(source, longer), longer.bound_s)
        return None

    def _schedule_next(self, limit_s: float) -> None:
        """Simulates the next divisions below a limit [s]."""
        while self._begun and self._begun[0][0] < limit_s and self.listed <= MOST_LISTED:
            if self._go_on() is not None:
                break
        near = nsmallest(AT_ONCE, self._whole)
        some = [one for k, (bound_s, _, one) in enumerate(near) if k == 0 or bound_s < limit_s]
        self._schedule([one for one in some if not self._is_scheduled(one)])

    def floors_of(self, count: int, size: int, left: int = 1, turns: Turns = ONE_EACH) -> Floors:
        """Lower bounds of all stages of a size; arguments as of `flight`."""
        key = count, size, self.flight(count, left, turns), turns.chunks
        least, known = self.floors.least(*key), self._known.get(key)
        if known is None or known[0] is not least:
            known = self._known[key] = least, Floors(
                least.forward_s, least.both_s, least.one_s, least.step_s,
                Tasks(
                    least.begun_s, least.back_s, least.once_s, least.input_s, least.weight_s,
                    least.passes_s, least.sent_s,
                ),
            )  # fmt: skip
        return known[1]

    def least_of_s(self, one: Open) -> float:
        """Bound of a division from those of its stages, whatever their plans are [s]."""
        stages = [
            self.floors_of(one.count, size, one.left(s), one.turns).at(one.run(s))
            for s, size in enumerate(one.sizes)
        ]
        return self.with_schedule(one, least_of(one, stages))

    def with_schedule(self, one: Open, least_s: float) -> float:
        """A bound of a division, or that of its schedules if it is known and higher [s]."""
        return max(least_s, self._scheduled.get(one.key, (0, 0.0))[1])

    def _is_scheduled(self, one: Open) -> bool:
        """Whether a division was simulated with the bounds of now."""
        return self._scheduled.get(one.key, (-1, 0.0))[0] == self._version_of(one)

    def _version_of(self, one: Open) -> int:
        return sum(self._rises[one.count, size] for size in {*one.sizes})

    def _schedule(self, found: Sequence[Open]) -> None:
        """Bounds each division by the least of the schedules to choose from."""
        groups: dict[tuple[int, int, Turns], dict[tuple[object, ...], Open]] = {}
        for one in found:
            groups.setdefault((one.count, len(one.sizes), one.turns), {})[one.key] = one
        for (count, stages, turns), rows in groups.items():
            names = in_turns(self.schedules, turns)
            for first in range(0, len(rows), AT_ONCE):
                some = [*rows.values()][first : first + AT_ONCE]
                tasks = np.zeros((len(Tasks._fields), stages, len(some)))
                for k, one in enumerate(some):
                    for s, size in enumerate(one.sizes):
                        each = self.floors_of(count, size, one.left(s), turns).tasks
                        tasks[:, s, k] = [seconds[one.run(s)] for seconds in each]
                into_s = np.array([one.moved_s for one in some]).T / 2
                bounds = least_of_schedules_s(names, count, turns.chunks, Tasks(*tasks), into_s)
                for one, bound_s in zip(some, bounds.tolist(), strict=True):
                    bound_s = self.with_schedule(one, bound_s)
                    self._scheduled[one.key] = self._version_of(one), bound_s

    def _chain(self, count: int) -> Listing:
        """The divisions with one stage on each group of devices, with the bounds of now."""
        version = self._version(Source(count, 0, ONE_EACH))
        if self._chains.get(count, (-1, None))[0] != version:
            space = self.candidates.space(count, "1f1b")
            self._chains[count] = version, Listing(
                space.machine, count, partial(self.floors_of, count), cache(space.transfer_s),
                self.stages,
            )  # fmt: skip
        return self._chains[count][1]

    def _in_turn(self, source: Source, *, afresh: bool = True) -> ListingInTurn:
        """The divisions in which groups take turns, with the bounds of now.

        Args:
            source: the source.
            afresh: whether to look for more paths where lower bounds of stages have risen.
        """
        version, known = self._version(source), self._turning.get(source)
        if known is None or known[0] != version:
            self._turning[source] = version, ListingInTurn(
                self._chain(source.count), source.groups, source.turns, self._limit_s,
                known and known[1].counts, not afresh,
            )  # fmt: skip
        return self._turning[source][1]

    def _opened(self, source: Source, one: Begun) -> Open:
        """A whole division."""
        places, sizes, turns = one.places, one.sizes, source.turns
        transfer_s = self._chain(source.count).transfer_s
        firsts = [sum(sizes[:g]) for g in crossed(turns.group(len(sizes)))]
        ends = [min(a, b) for a, b in zip(sizes[:1] + sizes, sizes, strict=False)]
        moved = tuple(
            float(transfer_s(first, size)[i])
            for first, size, i in zip(firsts, ends, places, strict=False)
        )
        return Open(source.count, places, sizes, turns, moved)


def least_of(one: Open, stages: Sequence[Least]) -> float:
    """Bound of a division with given bounds of its stages, under any schedule [s]."""
    return least_step_s(stages, one.moved_s, one.group, one.count)
