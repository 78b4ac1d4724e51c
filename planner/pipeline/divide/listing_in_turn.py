"""Bounds the divisions whose stages take turns on equal groups of devices; see `listing.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..schedule import Turns
from .candidates import in_turn_simulator
from .critical_paths import Counts, Floats, Paths, paths_along, paths_of
from .listing import Begun, Floors, Listing
from .transfers import crossed


@dataclass(frozen=True, slots=True)
class BegunInTurn(Begun):
    """The first stages of divisions in which groups take turns.

    ahead_s: for each group, the seconds until it has done its stages so far.
    back_s: the same of forward passes and input gradients, with the way back to the first stage.
    paths_s: seconds so far on each critical path.
    """

    ahead_s: tuple[float, ...] = ()
    back_s: tuple[float, ...] = ()
    paths_s: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class ListingInTurn:
    """The divisions of one number of micro-batches and way to take turns.

    listing: of the number of micro-batches.
    groups, turns: groups of devices, and how stages take turns on them.
    limit_s: step from which on bounds need not be sharp [s].
    given: paths of the schedule, if they are known.
    is_final: whether bounds come from the given paths alone; if not, more paths are looked for.
    """

    listing: Listing
    groups: int
    turns: Turns
    limit_s: float
    given: Counts | None = None
    is_final: bool = True

    @cached_property
    def size(self) -> int:
        """Devices of each group; 0 if there are no such groups."""
        return self.listing.turn_size(self.groups)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.groups * self.turns.chunks

    @cached_property
    def floors(self) -> Floors:
        """Bounds of the stages."""
        return self.listing.floors(self.size, self.stages, self.turns)

    @cached_property
    def moved_s(self) -> Floats:
        """Seconds of one transfer into each stage, at each place, [stage, place]."""
        size = self.size
        return np.array([
            self.listing.transfer_s(g * size, size) / 2
            for g in crossed(self.turns.group(self.stages))
        ])  # fmt: skip

    @cached_property
    def paths(self) -> Paths:
        """Critical paths of the schedule."""
        count, tasks = self.listing.count, self.floors.tasks
        simulator = in_turn_simulator(count, self.groups, self.turns, updated=True)
        if self.given is None or not self.is_final:
            return paths_of(simulator, tasks, self.moved_s, self.limit_s, self.given)
        return paths_along(simulator, self.given, tasks, self.moved_s)

    @property
    def counts(self) -> Counts | None:
        """Paths of the schedule, if they were found."""
        return self.paths.counts if "paths" in vars(self) else self.given

    def least_s(self) -> float:
        """The least bound of all divisions [s].

        It is no more than the means over groups of both bounds: of what each begins with, and works

            1 / p  *  sum over s of  T_s + max(p - 1 - s, 0) f_s + max(p - s, 0) c_s / 2

        and, with the work of the first group as T, of the way of the last micro-batches back

            1 / p  *  ((p - 1) g  +  sum over s of  T_s on the first group, else
                       m a_s + max(p - 1 - s, 0) a_s + max(p - s, 0) c_s)
        """
        size, p, count = self.size, self.groups, self.listing.count
        if not size:
            return math.inf
        floors = self.floors
        none = np.append(np.full(self.listing.places - 1, np.inf), 0.0)
        one_way, around = none, none
        group = self.turns.group(self.stages)
        for s in reversed(range(len(group))):
            moved_s = self.listing.transfer_s(s * size, size) if 0 < s < p else 0.0
            before, entered = max(p - 1 - s, 0), max(p - s, 0)
            ahead = floors.step_s + one_way[None, :]
            ahead = ahead + before * floors.forward_s if before else ahead
            one_way = ahead.min(axis=1) + entered * moved_s / 2
            work = floors.step_s if group[s] == 0 else (count + before) * floors.both_s
            work = work + (p - 1) * floors.one_s if s == 0 else work
            around = (work + around[None, :]).min(axis=1) + entered * moved_s
        return max(float(one_way[0]), float(around[0])) / p

    def begun(self, bound_s: float) -> BegunInTurn:
        """All divisions, whose bound is at least `bound_s`."""
        none, paths_s = (0.0,) * self.groups, np.zeros(len(self.paths.each))
        least_s = max(bound_s, self.paths.least_s)
        return BegunInTurn(self.stages, (0,), (), 0.0, 0.0, least_s, none, none, paths_s)

    def longer(self, one: Begun, limit_s: float) -> Iterator[BegunInTurn]:
        """Divisions that were begun, with each stage that may come next, below a limit [s]."""
        assert isinstance(one, BegunInTurn)
        last, i = self.listing.places - 1, one.places[-1]
        ends = slice(i + 1 if one.left > 1 else last, last - one.left + 2)
        return self._longer(one, ends, limit_s)

    def again(self, one: Begun) -> BegunInTurn:
        """What was begun, with the bounds of now."""
        now = self.begun(one.bound_s)
        for j in one.places[1:]:
            (now,) = self._longer(now, slice(j, j + 1), None)
        return now

    def _longer(
        self, one: BegunInTurn, ends: slice, limit_s: float | None
    ) -> Iterator[BegunInTurn]:
        """Divisions that were begun, with the next stage that ends at some places.

        Groups that have a stage end, on average, no earlier than with their share of what is left.
        """
        s, i = len(one.places) - 1, one.places[-1]
        floors, count, groups = self.floors, self.listing.count, self.groups
        g, left, moved_s = self._group[s], max(groups - s - 1, 0), 2 * float(self.moved_s[s, i])
        before_s, around_s = one.before_s + moved_s / 2, one.around_s + moved_s
        both = floors.both_s[i, ends]
        ahead = max(one.ahead_s[g], before_s) + floors.step_s[i, ends]
        back = max(one.back_s[g], around_s) + count * both if s else np.zeros_like(both)
        after_s = before_s + floors.forward_s[i, ends]
        passed_s = around_s + both if s else floors.one_s[i, ends]
        step_s, both_s = self._rest_s
        sums_s = sum(one.ahead_s) - one.ahead_s[g] + ahead + step_s[ends]
        backs_s = sum(one.back_s[1:]) + count * both_s[ends]
        if left:  # what does not fit is infinite
            sums_s, backs_s = sums_s + left * after_s, backs_s + left * passed_s
        backs_s = backs_s + (one.ahead_s[0] - one.back_s[g] + back if g else ahead)
        bounds = np.maximum(np.maximum(sums_s, backs_s) / groups, np.maximum(ahead, back))
        along_s, paths_s = self.paths.ends_s(s, i, ends, one.paths_s)
        bounds = np.maximum(np.maximum(bounds, along_s), one.bound_s)
        able = range(len(bounds)) if limit_s is None else np.flatnonzero(bounds < limit_s).tolist()
        for k in able:
            ahead_s, back_s = [*one.ahead_s], [*one.back_s]
            ahead_s[g], back_s[g] = float(ahead[k]), float(back[k])
            yield BegunInTurn(
                one.left - 1, (*one.places, ends.start + k), (*one.sizes, self.size),
                float(after_s[k]), float(passed_s[k]), float(bounds[k]), tuple(ahead_s),
                tuple(back_s), paths_s[:, k],
            )  # fmt: skip

    @cached_property
    def _group(self) -> tuple[int, ...]:
        return self.turns.group(self.stages)

    @cached_property
    def _rest_s(self) -> tuple[Floats, Floats]:
        """The least sums of T, and of a, over stages of what is left from each place on.

        One stage may take longer than its parts, each of which has its own kind of recomputation:

            S(i) = min over j > i of  T(i, j) + S(j)
        """
        return least_sums_s(self.floors.step_s), least_sums_s(self.floors.both_s)


def least_sums_s(seconds: Floats) -> Floats:
    """The least sum of seconds of runs from each place to the last, [first place, last place]."""
    found = np.zeros(len(seconds))
    for i in reversed(range(len(seconds) - 1)):
        found[i] = (seconds[i, i + 1 :] + found[i + 1 :]).min()
    return found
