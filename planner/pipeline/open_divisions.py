"""The divisions whose lower bound is below the best pipeline, for every way to schedule them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from ..common.errors import IndivisibleError
from .divide.candidates import Candidates, in_turn_simulator
from .divide.critical_paths import Tasks, least_of_schedules_s, paths_of
from .divide.dynamic_programme import EXACT, Division
from .divide.listing import Floors, Least, Listing, Parts, least_step_s
from .divide.transfers import crossed
from .schedule import ONE_EACH, Turns, in_turns, take, turned
from .stage_floors import StageFloors
from .trials import flight_of

# Stages that are looked at to list the divisions of one source, and the share of the best step by
# which the bounds of divisions are below it where there are too many.
MOST_LISTED, CLOSE = 200_000, 0.09
AT_ONCE = 1000  # divisions that are simulated at once


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

    family: what sets the micro-batches in flight; see `Source`.
    moved_s: transfers of one micro-batch into each stage, and of its gradient back [s].
    """

    count: int
    family: str
    places: tuple[int, ...]
    sizes: tuple[int, ...]
    turns: Turns
    flight: tuple[int, ...]
    moved_s: tuple[float, ...]

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


@dataclass
class OpenDivisions:
    """Lists divisions below a step, and bounds them.

    schedules: names of those to choose from.
    opened: the divisions that were listed.
    unlisted: source -> lower bound of its divisions that were not listed [s].
    """

    candidates: Candidates
    floors: StageFloors
    schedules: tuple[str, ...]
    opened: list[Open] = field(default_factory=list[Open])
    unlisted: dict[Source, float] = field(default_factory=dict[Source, float])
    _known: dict[tuple[int, int], Floors] = field(default_factory=dict[tuple[int, int], Floors])
    _scheduled: dict[tuple[object, ...], float] = field(
        default_factory=dict[tuple[object, ...], float]
    )

    def floors_of(self, count: int, size: int) -> Floors:
        """Lower bounds of all stages of a size."""
        if (count, size) not in self._known:
            least = self.floors.least(count, size)
            self._known[count, size] = Floors(
                least.forward_s, least.both_s, least.one_s, least.step_s,
                Tasks(
                    least.begun_s, least.back_s, least.once_s, least.input_s, least.weight_s,
                    least.passes_s,
                ),
            )  # fmt: skip
        return self._known[count, size]

    def least_s(self, one: Open) -> float:
        """Bound of a division from those of its stages, whatever their plans are [s]."""
        stages = [
            self.floors_of(one.count, size).at(one.run(s)) for s, size in enumerate(one.sizes)
        ]
        return self.with_schedule(one, least_of(one, stages))

    def with_schedule(self, one: Open, least_s: float) -> float:
        """A bound of a division, or that of its schedules if it is known and higher [s]."""
        return max(least_s, self._scheduled.get(one.key, 0.0))

    def schedule(self, found: Sequence[Open]) -> None:
        """Bounds each division by the least of the schedules to choose from.

        That is to be done again where bounds of stages rose.
        """
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
                        each = self.floors_of(count, size).tasks
                        tasks[:, s, k] = [seconds[one.run(s)] for seconds in each]
                into_s = np.array([one.moved_s for one in some]).T / 2
                bounds = least_of_schedules_s(names, count, turns.chunks, Tasks(*tasks), into_s)
                for one, bound_s in zip(some, bounds.tolist(), strict=True):
                    self._scheduled[one.key] = self.with_schedule(one, bound_s)

    def listed(
        self,
        best_s: float,
        counts: Sequence[int],
        families: Sequence[str],
        stages: Sequence[int],
        turns: Sequence[tuple[int, Turns]],
        most: int,
    ) -> list[Open]:
        """All divisions below the best step, but for those of sources with too many (`unlisted`).

        Once there are more than `most`, only those close to the bound are added: the others count
        only where all are looked at. Sources that were listed before are not listed again.
        """
        limit_s, first = best_s * (1 - EXACT), not self.unlisted
        sources = [
            Source(count, groups, each)
            for count in counts for groups, each in ((0, ONE_EACH), *turns)
            if not groups
            or (take(each, groups, count) and groups * each.chunks < self.floors.shares.count)
        ]  # fmt: skip
        rest = [source for source in sources if first or self.unlisted[source] < limit_s]
        self.opened = [one for one in self.opened if self.least_s(one) < limit_s]
        found = list[Open]()
        for source in rest:
            with suppress(IndivisibleError):
                is_many = len(self.opened) + len(found) > most
                limits = (limit_s * (1 - CLOSE),) if is_many else (limit_s, limit_s * (1 - CLOSE))
                if self.unlisted.get(source, 0.0) >= limits[0]:
                    continue
                listing = self._listing(source.count, stages)
                if source.groups:
                    parts = self._in_turn(listing, source, limits)
                    names = (turned(source.turns),)
                else:
                    find = partial(listing.below, most=MOST_LISTED)
                    parts, names = self._below(source, limits, find, listing.least_s), families
                for family in names:
                    found += self._opened(source.count, family, source.turns, parts, limit_s)
        self.schedule(found)
        known = {(one.key, one.family) for one in self.opened}
        self.opened += [
            one for one in found
            if self.least_s(one) < limit_s and (one.key, one.family) not in known
        ]  # fmt: skip
        return self.opened

    def _in_turn(self, listing: Listing, source: Source, limits: Sequence[float]) -> list[Parts]:
        """Divisions in which groups take turns."""
        limit_s, groups, turns = limits[0], source.groups, source.turns
        least_s, size = listing.least_in_turn_s(groups, turns), listing.turn_size(groups)
        self.unlisted[source] = limit_s
        if least_s >= limit_s:
            return []
        moved_s = np.array([
            listing.transfer_s(g * size, size) / 2
            for g in crossed(turns.group(groups * turns.chunks))
        ])  # fmt: skip
        simulator = in_turn_simulator(listing.count, groups, turns, updated=True)
        paths = paths_of(simulator, listing.floors[size].tasks, moved_s, limit_s)
        return self._below(
            source, limits, partial(listing.in_turn, groups, turns, paths, most=MOST_LISTED),
            lambda: max(least_s, paths.least_s),
        )  # fmt: skip

    def _below(
        self, source: Source, limits: Sequence[float], find: Callable[[float], list[Parts] | None],
        least_s: Callable[[], float],
    ) -> list[Parts]:  # fmt: skip
        """Divisions of a source below the first limit below which they are not too many.

        Args:
            source: the source.
            limits: in falling order [s].
            find: limit -> divisions, None where there are too many.
            least_s: the least bound of all divisions [s].
        """
        for below_s in limits:
            parts = find(below_s)
            if parts is not None:
                self.unlisted[source] = below_s
                return parts
        self.unlisted[source] = least_s()
        return []

    @property
    def unlisted_s(self) -> float:
        """Lower bound of the divisions that were not listed [s]; 0 before any was."""
        return min(self.unlisted.values(), default=0.0)

    def _listing(self, count: int, stages: Sequence[int]) -> Listing:
        space = self.candidates.space(count, "1f1b")
        floors = {size: self.floors_of(count, size) for size in space.machine.sizes}
        return Listing(space.machine, count, floors, cache(space.transfer_s), stages)

    def _opened(
        self, count: int, family: str, turns: Turns, parts: Iterable[Parts], limit_s: float
    ) -> Iterator[Open]:
        transfer_s = cache(self.candidates.space(count, "1f1b").transfer_s)

        @cache
        def flight(stages: int) -> tuple[int, ...]:
            none = (0,) * stages  # neither places nor devices count
            return flight_of(
                count, Division(none, none, ("none",) * stages, 0.0, 0.0, turns), family
            )

        for places, sizes in parts:
            firsts = [sum(sizes[:g]) for g in crossed(turns.group(len(sizes)))]
            ends = [min(a, b) for a, b in zip(sizes[:1] + sizes, sizes, strict=False)]
            moved = tuple(
                float(transfer_s(first, size)[i])
                for first, size, i in zip(firsts, ends, places, strict=False)
            )
            one = Open(count, family, places, sizes, turns, flight(len(sizes)), moved)
            if self.least_s(one) < limit_s:
                yield one


def least_of(one: Open, stages: Sequence[Least]) -> float:
    """Bound of a division with given bounds of its stages, under any schedule [s]."""
    return least_step_s(stages, one.moved_s, one.group, one.count)
