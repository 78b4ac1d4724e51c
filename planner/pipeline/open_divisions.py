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
from .schedule import INTERLEAVED
from .stage_floors import StageFloors
from .trials import flight_of

# Stages that are looked at to list the divisions of one source, and the share of the best step by
# which the bounds of divisions are below it where there are too many.
MOST_LISTED, CLOSE = 200_000, 0.1


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
    chunks: int
    flight: tuple[int, ...]
    moved_s: tuple[float, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """What it is, whatever the micro-batches in flight."""
        return self.count, self.places, self.sizes, self.chunks

    @property
    def groups(self) -> int:
        """Groups of devices."""
        return len(self.sizes) // self.chunks

    def run(self, s: int) -> tuple[int, int]:
        """Places of a stage."""
        return self.places[s], self.places[s + 1]


@dataclass
class OpenDivisions:
    """Lists divisions below a step, and bounds them.

    schedules: names of those to choose from.
    unlisted_s: lower bound of the divisions that were not listed [s].
    """

    candidates: Candidates
    floors: StageFloors
    schedules: tuple[str, ...]
    unlisted_s: float = 0.0
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
                Tasks(least.begun_s, least.back_s, least.once_s, least.input_s, least.weight_s),
            )  # fmt: skip
        return self._known[count, size]

    def least_s(self, one: Open) -> float:
        """Bound of a division from those of its stages, whatever their plans are [s].

        The order of its tasks is in it once `scheduled_s` was asked for.
        """
        stages = [
            self.floors_of(one.count, size).at(one.run(s)) for s, size in enumerate(one.sizes)
        ]
        return self.with_schedule(one, least_of(one, stages))

    def with_schedule(self, one: Open, least_s: float) -> float:
        """A bound of a division, or that of its schedules if it is known and higher [s]."""
        return max(least_s, self._scheduled.get(one.key, 0.0))

    def scheduled_s(self, one: Open) -> float:
        """The same as `least_s`, no less than the least of the schedules to choose from [s]."""
        if one.key not in self._scheduled:
            tasks = [
                Tasks(*(float(each[one.run(s)]) for each in self.floors_of(one.count, size).tasks))
                for s, size in enumerate(one.sizes)
            ]
            names = [n for n in self.schedules if (n == INTERLEAVED) == (one.chunks > 1)]
            self._scheduled[one.key] = least_of_schedules_s(
                names, one.count, one.chunks, tasks, [moved_s / 2 for moved_s in one.moved_s]
            )
        return self.least_s(one)

    def listed(
        self,
        best_s: float,
        counts: Sequence[int],
        families: Sequence[str],
        stages: Sequence[int],
        turns: Sequence[tuple[int, int]],
        most: int,
    ) -> list[Open]:
        """All divisions below the best step, but for some of sources with too many.

        Once there are more than `most`, only those close to the bound are added: the others count
        only where all are looked at.
        """
        self.unlisted_s = limit_s = best_s * (1 - EXACT)
        found = list[Open]()

        def limits() -> tuple[float, ...]:
            close_s = limit_s * (1 - CLOSE)
            return (limit_s, close_s) if len(found) <= most else (close_s,)

        for count in counts:
            with suppress(IndivisibleError):
                listing = self._listing(count, stages)
                parts = self._below(
                    limits(), partial(listing.below, most=MOST_LISTED), listing.least_s
                )
                for family in families:
                    found += self._opened(count, family, 1, parts, limit_s)
                for groups, chunks in turns:
                    if not count % groups and groups * chunks < self.floors.shares.count:
                        parts = self._in_turn(listing, groups, chunks, limits())
                        found += self._opened(count, INTERLEAVED, chunks, parts, limit_s)
        return found

    def _in_turn(
        self, listing: Listing, groups: int, chunks: int, limits: Sequence[float]
    ) -> list[Parts]:
        """Divisions in which groups take turns."""
        limit_s = limits[0]
        least_s, size = listing.least_in_turn_s(groups, chunks), listing.turn_size(groups)
        if least_s >= limit_s:
            return []
        moved_s = np.array([
            listing.transfer_s(s % groups * size, size) / 2 for s in range(groups * chunks)
        ])  # fmt: skip
        moved_s[0] = 0.0
        simulator = in_turn_simulator(listing.count, groups, chunks, updated=True)
        paths = paths_of(simulator, listing.floors[size].tasks, moved_s, limit_s)
        return self._below(
            limits, partial(listing.in_turn, groups, chunks, paths, most=MOST_LISTED),
            lambda: max(least_s, paths.least_s),
        )  # fmt: skip

    def _below(
        self, limits: Sequence[float], find: Callable[[float], list[Parts] | None],
        least_s: Callable[[], float],
    ) -> list[Parts]:  # fmt: skip
        """Divisions of a source below the first limit below which they are not too many.

        Args:
            limits: in falling order [s].
            find: limit -> divisions, None where there are too many.
            least_s: the least bound of all divisions [s].
        """
        for below_s in limits:
            parts = find(below_s)
            if parts is not None:
                self.unlisted_s = min(self.unlisted_s, below_s)
                return parts
        self.unlisted_s = min(self.unlisted_s, least_s())
        return []

    def _listing(self, count: int, stages: Sequence[int]) -> Listing:
        space = self.candidates.space(count, "1f1b")
        floors = {size: self.floors_of(count, size) for size in space.machine.sizes}
        return Listing(space.machine, count, floors, cache(space.transfer_s), stages)

    def _opened(
        self, count: int, family: str, chunks: int, parts: Iterable[Parts], limit_s: float
    ) -> Iterator[Open]:
        transfer_s = cache(self.candidates.space(count, "1f1b").transfer_s)

        @cache
        def flight(stages: int) -> tuple[int, ...]:
            none = (0,) * stages  # neither places nor devices count
            return flight_of(
                count, Division(none, none, ("none",) * stages, 0.0, 0.0, chunks), family
            )

        for places, sizes in parts:
            firsts = [sum(sizes[:s]) for s in range(len(sizes) // chunks)] * chunks
            ends = [min(a, b) for a, b in zip(sizes[:1] + sizes, sizes, strict=False)]
            moved = tuple(
                float(transfer_s(first, size)[i])
                for first, size, i in zip(firsts, ends, places, strict=False)
            )
            one = Open(count, family, places, sizes, chunks, flight(len(sizes)), moved)
            if self.least_s(one) < limit_s:
                yield one


def least_of(one: Open, stages: Sequence[Least]) -> float:
    """Bound of a division with given bounds of its stages, under any schedule [s]."""
    return least_step_s(stages, one.moved_s, one.groups, one.count)
