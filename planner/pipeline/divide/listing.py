"""Bounds the divisions of a chain into stages, from their first stages on.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..schedule import ONE_EACH, Turns
from .critical_paths import Tasks
from .dynamic_programme import Machine

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


@dataclass(frozen=True, slots=True)
class Begun:
    """The first stages of divisions.

    left: stages that are left.
    before_s: forward passes and transfers before the next stage.
    around_s: both passes and all transfers there.
    bound_s: lower bound of all divisions that begin so.
    """

    left: int
    places: tuple[int, ...] = (0,)
    sizes: tuple[int, ...] = ()
    before_s: float = 0.0
    around_s: float = 0.0
    bound_s: float = 0.0


@dataclass(frozen=True)
class Listing:
    """The divisions of one number of micro-batches.

    count: number of micro-batches.
    floors: (devices of a stage, stages from it to the last, how they take turns) -> bounds; where
        they take turns, of all stages as of the first.
    transfer_s: (first device of a stage, its devices) -> seconds of its input and of the gradient
        that it sends back, at each place.
    """

    machine: Machine
    count: int
    floors: Callable[[int, int, Turns], Floors]
    transfer_s: Callable[[int, int], Floats]
    stages: Sequence[int]

    def least_s(self) -> float:
        """The least bound of all divisions with one stage on each group of devices [s]."""
        return min((self._least_of(p) for p in self.stages), default=math.inf)

    def _least_of(self, stages: int) -> float:
        """The least bound of all divisions into so many stages [s]."""
        one_way, around = self._tables
        return max(float(one_way[stages][0, -1]), float(around[stages][0, -1]))

    def begun(self) -> list[Begun]:
        """The divisions by number of stages."""
        return [Begun(p, bound_s=self._least_of(p)) for p in self.stages]

    def longer(self, one: Begun, limit_s: float) -> Iterator[Begun]:
        """Divisions that were begun, with each stage that may come next, below a limit [s]."""
        for size in self.machine.sizes:
            ends = self._ends(one, size)
            if ends is not None:
                for j in np.flatnonzero(ends[0] < limit_s).tolist():
                    yield _with_next(one, size, j, ends)

    def again(self, one: Begun) -> Begun:
        """What was begun, with the bounds of now."""
        stages = one.left + len(one.sizes)
        now = Begun(stages, bound_s=max(one.bound_s, self._least_of(stages)))
        for size, j in zip(one.sizes, one.places[1:], strict=True):
            ends = self._ends(now, size)
            assert ends is not None
            now = _with_next(now, size, j, ends)
        return now

    def _ends(self, one: Begun, size: int) -> tuple[Floats, Floats, Floats] | None:
        """Bounds for all ends of the next stage, and what comes before the one after it.

        Returns:
            None if such a stage cannot come next.
        """
        i, first, left = one.places[-1], sum(one.sizes), one.left - 1
        one_way, around = self._tables
        rest = self.machine.devices - first - size
        if rest < 0 or not self.machine.fits_at(first, size):
            return None
        floors = self.floors(size, one.left, ONE_EACH)
        moved_s = float(self.transfer_s(first, size)[i])
        entered_s, passed_s = one.before_s + moved_s / 2, one.around_s + moved_s
        after_s, back_s = one_way[left][:, rest], around[left][:, rest]
        ends = entered_s + np.maximum(floors.step_s[i], floors.forward_s[i] + after_s)
        if i:
            own = np.maximum(self.count * floors.both_s[i], floors.both_s[i] + back_s)
        else:
            own = floors.one_s[i] + back_s
        bounds = np.maximum(np.maximum(ends, passed_s + own), one.bound_s)
        passing = floors.both_s if i else floors.one_s
        return bounds, entered_s + floors.forward_s[i], passed_s + passing[i]

    def turn_size(self, groups: int) -> int:
        """Devices of each of some equal groups; 0 if there are no such groups."""
        size = self.machine.devices // groups
        able = self.machine.devices % groups == 0 and size in self.machine.sizes
        return size if able and all(
            self.machine.fits_at(size * g, size) for g in range(groups)
        ) else 0  # fmt: skip

    @property
    def places(self) -> int:
        """Places between slots, and both ends."""
        return len(self.floors(self.machine.sizes[0], 1, ONE_EACH).step_s)

    @cached_property
    def _tables(self) -> tuple[list[Floats], list[Floats]]:
        """V and W by number of stages: [first place, devices left]; W at place 0 with g for a."""
        n, devices = self.places, self.machine.devices
        none = np.full((n, devices + 1), np.inf)
        none[-1, 0] = 0.0
        one_way, around = [none], [none]
        for left in range(1, max(self.stages, default=0) + 1):
            ahead, back = np.full_like(none, np.inf), np.full_like(none, np.inf)
            for size, k in self._placed():
                floors = self.floors(size, left, ONE_EACH)
                moved_s = self.transfer_s(devices - k, size)
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
        for size in self.machine.sizes:
            for k in range(size, devices + 1):
                if self.machine.fits_at(devices - k, size):
                    yield size, k


def _with_next(one: Begun, size: int, j: int, ends: tuple[Floats, Floats, Floats]) -> Begun:
    """What was begun, with the next stage up to place j."""
    bound_s, before_s, around_s = (float(each[j]) for each in ends)
    return Begun(
        one.left - 1, (*one.places, j), (*one.sizes, size), before_s, around_s, bound_s
    )  # fmt: skip
