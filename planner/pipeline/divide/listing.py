"""Lists the divisions of a chain into stages whose bound is below a limit.

With T_s the least seconds of stage s for all micro-batches of a step and its update, f_s those of
one forward pass, and c_s the transfers of one micro-batch into the stage and of its gradient back,
a step under any schedule takes at least

    max over s of  (sum over r < s of  f_r + c_r / 2)  +  c_s / 2  +  T_s

since stage s begins when the first micro-batch has passed all stages before it. Where a group of
devices holds several stages, T_s is their sum. The least of it over all divisions of the places
from i on into e stages on k devices follows from

    V[e, i, k] = min over j > i, d:  c_i / 2 + max(T[d](i, j), f[d](i, j) + V[e - 1, j, k - d])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .dynamic_programme import Machine

Floats = NDArray[np.float64]
Parts = tuple[tuple[int, ...], tuple[int, ...]]  # places of a division, and devices of its stages


@dataclass(frozen=True)
class Floors:
    """Least seconds of every run of slots as a stage, shape [first place, last place].

    forward_s: one forward pass.
    step_s: all micro-batches of a step, and the update.
    """

    forward_s: Floats
    step_s: Floats


def least_step_s(
    stages: Sequence[tuple[float, float]], moved_s: Sequence[float], groups: int
) -> float:
    """The bound of one division.

    Args:
        stages: f_s and T_s of every stage [s].
        moved_s: c_s of every stage.
        groups: groups of devices; stage s is on group s mod `groups`.
    """
    before, found = 0.0, 0.0
    for g in range(groups):
        before += moved_s[g] / 2
        found = max(found, before + sum(step_s for _, step_s in stages[g::groups]))
        before += stages[g][0]
    return found


@dataclass(frozen=True)
class Listing:
    """The divisions of one number of micro-batches.

    floors: devices of a sub-mesh -> bounds of its stages.
    transfer_s: (first device of a stage, its devices) -> seconds of its input and of the gradient
        that it sends back, at each place.
    """

    machine: Machine
    floors: Mapping[int, Floors]
    transfer_s: Callable[[int, int], Floats]
    stages: Sequence[int]

    def least_s(self) -> float:
        """The least bound of all divisions with one stage on each group of devices [s]."""
        table = self._table()
        return min((float(table[p][0, -1]) for p in self.stages), default=math.inf)

    def below(self, limit_s: float, most: int) -> list[Parts] | None:
        """Divisions with one stage on each group whose bound is below a limit.

        Args:
            limit_s: the limit [s].
            most: number of stages to look at.

        Returns:
            The divisions; None if they are too many.
        """
        table, found, looked = self._table(), list[Parts](), 0
        devices, last = self.machine.devices, self._count - 1
        # stages left; first place and device of the next; forward passes and transfers before it
        begun = [(p, 0, 0, 0.0, (0,), ()) for p in self.stages if table[p][0, -1] < limit_s]
        todo: list[tuple[int, int, int, float, tuple[int, ...], tuple[int, ...]]] = [*begun]
        while todo:
            left, i, first, before, places, sizes = todo.pop()
            if not left:
                found.append((places, sizes))
                continue
            for size, floors in self.floors.items():
                rest = devices - first - size
                if rest < 0 or not self.machine.fits_at(first, size):
                    continue
                entered = before + float(self.transfer_s(first, size)[i]) / 2
                ends = np.maximum(floors.step_s[i], floors.forward_s[i] + table[left - 1][:, rest])
                looked += last - i
                for j in np.flatnonzero(entered + ends < limit_s).tolist():
                    passed = entered + float(floors.forward_s[i, j])
                    todo.append(
                        (left - 1, j, first + size, passed, (*places, j), (*sizes, size))
                    )  # fmt: skip
            if looked > most:
                return None
        return found

    def least_in_turn_s(self, groups: int, chunks: int) -> float:
        """The least bound of `chunks` stages on each of some equal groups of devices [s].

        It is no more than the mean over groups of what each begins with, and works:

            1 / p  *  sum over s of  T_s + max(p - 1 - s, 0) f_s + max(p - s, 0) c_s / 2
        """
        size = self._turn_size(groups)
        if not size:
            return math.inf
        floors, n = self.floors[size], self._count
        least = np.append(np.full(n - 1, np.inf), 0.0)
        for s in reversed(range(groups * chunks)):
            ends = floors.step_s + least[None, :]
            if s < groups - 1:
                ends = ends + (groups - 1 - s) * floors.forward_s
            least = ends.min(axis=1)
            if s < groups:
                least = least + (groups - s) * self.transfer_s(s * size, size) / 2
        return float(least[0]) / groups

    def _turn_size(self, groups: int) -> int:
        """Devices of each of some equal groups; 0 if there are no such groups."""
        size = self.machine.devices // groups
        able = self.machine.devices % groups == 0 and size in self.floors
        return size if able and all(
            self.machine.fits_at(size * g, size) for g in range(groups)
        ) else 0  # fmt: skip

    def in_turn(self, groups: int, chunks: int, limit_s: float, most: int) -> list[Parts] | None:
        """Divisions into `chunks` stages on each of some equal groups; arguments as of `below`."""
        size = self._turn_size(groups)
        if not size:
            return []
        step_s, last = self.floors[size].step_s, self._count - 1
        rest = np.append(step_s[:-1, -1], 0.0)
        begun = ((0,), (0.0,) * groups)  # places so far, and seconds of each group
        todo: list[tuple[tuple[int, ...], tuple[float, ...]]] = [begun]
        found, looked = list[Parts](), 0
        while todo:
            places, busy = todo.pop()
            s, i = len(places) - 1, places[-1]
            if s == groups * chunks:
                found += [(places, (size,) * s)] if i == last else []
                continue
            looked += last - i
            if looked > most:
                return None
            for j in range(i + 1, last + 1):
                now = [t + (s % groups == g) * float(step_s[i, j]) for g, t in enumerate(busy)]
                if max(max(now), (sum(now) + float(rest[j])) / groups) < limit_s:
                    todo.append(((*places, j), tuple(now)))
        return found

    @property
    def _count(self) -> int:
        return len(next(iter(self.floors.values())).step_s)

    def _table(self) -> list[Floats]:
        """V by number of stages: [first place, devices left]."""
        n, devices = self._count, self.machine.devices
        least = np.full((n, devices + 1), np.inf)
        least[-1, 0] = 0.0
        found = [least]
        for _ in range(max(self.stages, default=0)):
            now = np.full_like(least, np.inf)
            for size, k in self._placed():
                floors = self.floors[size]
                after = floors.forward_s + least[None, :, k - size]
                ends = np.maximum(floors.step_s, after).min(axis=1)
                moved = self.transfer_s(devices - k, size) / 2
                now[:, k] = np.minimum(now[:, k], ends + moved)
            least = now
            found.append(now)
        return found

    def _placed(self) -> Iterator[tuple[int, int]]:
        """Sub-meshes, and devices from each of them to the last."""
        devices = self.machine.devices
        for size in self.floors:
            for k in range(size, devices + 1):
                if self.machine.fits_at(devices - k, size):
                    yield size, k
