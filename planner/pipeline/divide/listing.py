"""Lists the divisions of a chain into stages whose bound is below a limit.

With T_s the least seconds of stage s for all micro-batches of a step and its update, f_s those of
one forward pass, a_s those of one forward pass and input gradient, and c_s the transfers of one
micro-batch into the stage and of its gradient back, a step of m micro-batches under any schedule
takes at least

    max over s of  (sum over r < s of  f_r + c_r / 2)  +  c_s / 2  +  T_s

since stage s begins when the first micro-batch has passed all stages before it. Where a group of
devices holds several stages, T_s is the sum of s and the later ones, which begin no earlier. It
also takes at least

    max over s > 0 of  g  +  (sum over 0 < r < s of  a_r + c_r)  +  c_s  +  m a_s

with g the seconds of the first stage for one micro-batch and its update, and m a_s summed over s
and the later stages of its group: the last input gradient of s follows all forward passes and input
gradients of these, and passes all stages before s. A link from one group to another is busy for

    m c_s / 2  summed over the stages s that follow the one on the other, and those before it

which counts where groups take turns: two groups with two stages each use both links thrice. The
least of both over all divisions of one
stage on each group of the places from i on into e stages on k devices follows from

    V[e, i, k] = min over j > i, d: c_i / 2 + max(T[d](i, j), f[d](i, j) + V[e - 1, j, k - d])
    W[e, i, k] = min over j > i, d: c_i     + max(m a[d](i, j), a[d](i, j) + W[e - 1, j, k - d])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..schedule import Turns
from .critical_paths import Paths, Tasks
from .dynamic_programme import Machine
from .transfers import crossed

Floats = NDArray[np.float64]
Parts = tuple[tuple[int, ...], tuple[int, ...]]  # places of a division, and devices of its stages


@dataclass(frozen=True)
class Floors:
    """Least seconds of every run of slots as a stage, shape [first place, last place].

    forward_s: one forward pass.
    both_s: one forward pass and input gradient.
    one_s: all of one micro-batch, and the update.
    step_s: all micro-batches of a step, and the update.
    tasks: one run of each of its programs.
    """

    forward_s: Floats
    both_s: Floats
    one_s: Floats
    step_s: Floats
    tasks: Tasks[Floats]

    def at(self, run: tuple[int, int]) -> Least:
        """The seconds of one run."""
        return Least(
            float(self.forward_s[run]), float(self.both_s[run]), float(self.one_s[run]),
            float(self.step_s[run]),
        )  # fmt: skip


class Least(NamedTuple):
    """Least seconds of one stage; see `Floors`."""

    forward_s: float
    both_s: float
    one_s: float
    step_s: float


def least_step_s(
    stages: Sequence[Least], moved_s: Sequence[float], group: Sequence[int], count: int
) -> float:
    """The bound of one division.

    Args:
        stages: least seconds of every stage.
        moved_s: c_s of every stage.
        group: group of devices of every stage.
        count: number of micro-batches.
    """
    before, around, found = 0.0, stages[0].one_s, 0.0
    for s, stage in enumerate(stages):
        later = [one for one, g in zip(stages[s:], group[s:], strict=True) if g == group[s]]
        before += moved_s[s] / 2
        found = max(found, before + sum(one.step_s for one in later))
        before += stage.forward_s
        if s:
            around += moved_s[s]
            found = max(found, around + count * sum(one.both_s for one in later))
            around += stage.both_s
    return max(found, count * _busiest_link_s(moved_s, group))


def _busiest_link_s(moved_s: Sequence[float], group: Sequence[int]) -> float:
    """Seconds of one micro-batch on the link between two groups that is used most."""
    busy: dict[tuple[int, int], float] = {}
    for (a, b), seconds in zip(pairwise(group), moved_s[1:], strict=True):
        for link in {(a, b), (b, a)}:
            busy[link] = busy.get(link, 0.0) + seconds / 2
    return max(busy.values(), default=0.0)


@dataclass(frozen=True)
class _Begun:
    """The first stages of a division, and what comes before the next.

    left: stages that are left.
    before_s: forward passes and transfers before the next stage.
    around_s: both passes and all transfers there.
    """

    left: int
    places: tuple[int, ...] = (0,)
    sizes: tuple[int, ...] = ()
    before_s: float = 0.0
    around_s: float = 0.0


@dataclass(frozen=True)
class _InTurn:
    """The first stages of a division in which groups take turns.

    ahead_s: for each group, the seconds until it has done its stages so far.
    back_s: the same of forward passes and input gradients, with the way back to the first stage.
    before_s, around_s: as of `_Begun`.
    paths_s: seconds so far on each critical path.
    """

    ahead_s: tuple[float, ...]
    back_s: tuple[float, ...]
    paths_s: Floats
    places: tuple[int, ...] = (0,)
    before_s: float = 0.0
    around_s: float = 0.0


@dataclass(frozen=True)
class Listing:
    """The divisions of one number of micro-batches.

    count: number of micro-batches.
    floors: devices of a sub-mesh -> bounds of its stages.
    transfer_s: (first device of a stage, its devices) -> seconds of its input and of the gradient
        that it sends back, at each place.
    """

    machine: Machine
    count: int
    floors: Mapping[int, Floors]
    transfer_s: Callable[[int, int], Floats]
    stages: Sequence[int]

    def least_s(self) -> float:
        """The least bound of all divisions with one stage on each group of devices [s]."""
        return min((self._least_of(p) for p in self.stages), default=math.inf)

    def _least_of(self, stages: int) -> float:
        """The least bound of all divisions into so many stages [s]."""
        one_way, around = self._tables
        return max(float(one_way[stages][0, -1]), float(around[stages][0, -1]))

    def below(self, limit_s: float, most: int) -> list[Parts] | None:
        """Divisions with one stage on each group whose bound is below a limit.

        Args:
            limit_s: the limit [s].
            most: number of stages to look at.

        Returns:
            The divisions; None if they are too many.
        """
        found, looked = list[Parts](), 0
        todo = [_Begun(p) for p in self.stages if self._least_of(p) < limit_s]
        while todo:
            one = todo.pop()
            if not one.left:
                found.append((one.places, one.sizes))
                continue
            looked += len(self.floors) * (self._places - 1 - one.places[-1])
            if looked > most:
                return None
            todo += self._longer(one, limit_s)
        return found

    def _longer(self, one: _Begun, limit_s: float) -> Iterator[_Begun]:
        """A division that was begun, with each stage that may come next."""
        i, first, left = one.places[-1], sum(one.sizes), one.left - 1
        one_way, around = self._tables
        for size, floors in self.floors.items():
            rest = self.machine.devices - first - size
            if rest < 0 or not self.machine.fits_at(first, size):
                continue
            moved_s = float(self.transfer_s(first, size)[i])
            entered_s, passed_s = one.before_s + moved_s / 2, one.around_s + moved_s
            after_s, back_s = one_way[left][:, rest], around[left][:, rest]
            ends = entered_s + np.maximum(floors.step_s[i], floors.forward_s[i] + after_s)
            if i:
                own = np.maximum(self.count * floors.both_s[i], floors.both_s[i] + back_s)
            else:
                own = floors.one_s[i] + back_s
            ends = np.maximum(ends, passed_s + own)
            passing = floors.both_s if i else floors.one_s
            for j in np.flatnonzero(ends < limit_s).tolist():
                yield _Begun(
                    left, (*one.places, j), (*one.sizes, size),
                    entered_s + float(floors.forward_s[i, j]), passed_s + float(passing[i, j]),
                )  # fmt: skip

    def least_in_turn_s(self, groups: int, turns: Turns) -> float:
        """The least bound of stages that take turns on some equal groups of devices [s].

        It is no more than the means over groups of both bounds: of what each begins with, and works

            1 / p  *  sum over s of  T_s + max(p - 1 - s, 0) f_s + max(p - s, 0) c_s / 2

        and, with the work of the first group as T, of the way of the last micro-batches back

            1 / p  *  ((p - 1) g  +  sum over s of  T_s on the first group, else
                       m a_s + max(p - 1 - s, 0) a_s + max(p - s, 0) c_s)
        """
        size, p = self.turn_size(groups), groups
        if not size:
            return math.inf
        floors = self.floors[size]
        none = np.append(np.full(self._places - 1, np.inf), 0.0)
        one_way, around = none, none
        group = turns.group(p * turns.chunks)
        for s in reversed(range(len(group))):
            moved_s = self.transfer_s(s * size, size) if 0 < s < p else 0.0
            before, entered = max(p - 1 - s, 0), max(p - s, 0)
            ahead = floors.step_s + one_way[None, :]
            ahead = ahead + before * floors.forward_s if before else ahead
            one_way = ahead.min(axis=1) + entered * moved_s / 2
            work = floors.step_s if group[s] == 0 else (self.count + before) * floors.both_s
            work = work + (p - 1) * floors.one_s if s == 0 else work
            around = (work + around[None, :]).min(axis=1) + entered * moved_s
        return max(float(one_way[0]), float(around[0])) / p

    def turn_size(self, groups: int) -> int:
        """Devices of each of some equal groups; 0 if there are no such groups."""
        size = self.machine.devices // groups
        able = self.machine.devices % groups == 0 and size in self.floors
        return size if able and all(
            self.machine.fits_at(size * g, size) for g in range(groups)
        ) else 0  # fmt: skip

    def in_turn(
        self, groups: int, turns: Turns, paths: Paths, limit_s: float, most: int
    ) -> list[Parts] | None:
        """Divisions whose stages take turns on some equal groups.

        Args:
            groups: number of groups.
            turns: how they do.
            paths: critical paths of the schedule.
            limit_s: upper limit of their bounds [s].
            most: number of stages to look at.
        """
        size = self.turn_size(groups)
        if not size or paths.least_s >= limit_s:
            return []
        floors, last, stages = self.floors[size], self._places - 1, groups * turns.chunks
        group = turns.group(stages)
        entered = crossed(group)
        rest_s = tuple(np.append(each[:-1, -1], 0.0) for each in (floors.step_s, floors.both_s))
        none, found, looked = (0.0,) * groups, list[Parts](), 0
        todo = [_InTurn(none, none, np.zeros(len(paths.each)))]
        while todo:
            one = todo.pop()
            s, i = len(one.places) - 1, one.places[-1]
            if s == stages:
                found.append((one.places, (size,) * s))
                continue
            first = i + 1 if s + 1 < stages else last
            looked += last - stages + s + 2 - first
            if looked > most:
                return None
            ends = slice(first, last - stages + s + 2)
            moved_s = float(self.transfer_s(entered[s] * size, size)[i])
            todo += self._longer_in_turn(
                one, group[s], floors, ends, moved_s, rest_s, paths, limit_s
            )
        return found

    def _longer_in_turn(
        self, one: _InTurn, g: int, floors: Floors, ends: slice, moved_s: float,
        rest_s: tuple[Floats, ...], paths: Paths, limit_s: float,
    ) -> Iterator[_InTurn]:  # fmt: skip
        """A division that was begun, with each stage that may come next.

        Groups that have a stage end, on average, no earlier than with their share of what is left.

        Args:
            one: its first stages.
            g: group of the next one.
            floors: bounds of stages.
            ends: places at which the next stage may end.
            moved_s: c_s of it.
            rest_s: T, and a, of what is left from each place on, as one stage.
            paths: critical paths of the schedule.
            limit_s: upper limit of the bound [s].
        """
        groups, s, i = len(one.ahead_s), len(one.places) - 1, one.places[-1]
        left = max(groups - s - 1, 0)
        before_s, around_s = one.before_s + moved_s / 2, one.around_s + moved_s
        both = floors.both_s[i, ends]
        ahead = max(one.ahead_s[g], before_s) + floors.step_s[i, ends]
        back = max(one.back_s[g], around_s) + self.count * both if s else np.zeros_like(both)
        after_s = before_s + floors.forward_s[i, ends]
        passed_s = around_s + both if s else floors.one_s[i, ends]
        sums_s = sum(one.ahead_s) - one.ahead_s[g] + ahead + left * after_s + rest_s[0][ends]
        backs_s = sum(one.back_s[1:]) + left * passed_s + self.count * rest_s[1][ends]
        backs_s = backs_s + (one.ahead_s[0] - one.back_s[g] + back if g else ahead)
        bounds = np.maximum(np.maximum(sums_s, backs_s) / groups, np.maximum(ahead, back))
        along_s, paths_s = paths.ends_s(s, i, ends, one.paths_s)
        bounds = np.maximum(bounds, along_s)
        for k in np.flatnonzero(bounds < limit_s).tolist():
            ahead_s, back_s = [*one.ahead_s], [*one.back_s]
            ahead_s[g], back_s[g] = float(ahead[k]), float(back[k])
            yield _InTurn(
                tuple(ahead_s), tuple(back_s), paths_s[:, k], (*one.places, ends.start + k),
                float(after_s[k]), float(passed_s[k]),
            )  # fmt: skip

    @property
    def _places(self) -> int:
        return len(next(iter(self.floors.values())).step_s)

    @cached_property
    def _tables(self) -> tuple[list[Floats], list[Floats]]:
        """V and W by number of stages: [first place, devices left]; W at place 0 with g for a."""
        n, devices = self._places, self.machine.devices
        none = np.full((n, devices + 1), np.inf)
        none[-1, 0] = 0.0
        one_way, around = [none], [none]
        for _ in range(max(self.stages, default=0)):
            ahead, back = np.full_like(none, np.inf), np.full_like(none, np.inf)
            for size, k in self._placed():
                floors, moved_s = self.floors[size], self.transfer_s(devices - k, size)
                after = floors.forward_s + one_way[-1][None, :, k - size]
                ends = np.maximum(floors.step_s, after).min(axis=1) + moved_s / 2
                ahead[:, k] = np.minimum(ahead[:, k], ends)
                after = floors.both_s + around[-1][None, :, k - size]
                own = np.maximum(self.count * floors.both_s, after)
                own[0] = floors.one_s[0] + around[-1][:, k - size]
                back[:, k] = np.minimum(back[:, k], own.min(axis=1) + moved_s)
            one_way.append(ahead)
            around.append(back)
        return one_way, around

    def _placed(self) -> Iterator[tuple[int, int]]:
        """Sub-meshes, and devices from each of them to the last."""
        devices = self.machine.devices
        for size in self.floors:
            for k in range(size, devices + 1):
                if self.machine.fits_at(devices - k, size):
                    yield size, k
