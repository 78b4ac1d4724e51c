"""Places of the cuts of a pipeline, chosen by simulation with the stage prices that are known.

The dynamic programme adds up what stages wait for each other, which no schedule does exactly: a
stage may fill that time with other micro-batches. Here the divisions of one number of micro-batches
into stages on given groups of devices are simulated under each schedule, many at once. Prices of
planned stages are exact; those of other runs of slots are the lower estimates of `StageBounds`,
divided among the passes as those of the planned stages.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product

import numpy as np
from numpy.typing import NDArray

from ..schedule import IN_FLIGHT, Kind, Turns, family_of, in_turns
from .candidates import Candidates, flights_in_turn
from .critical_paths import simulator_of
from .dynamic_programme import Division
from .stage_bounds import Known, StageKind
from .transfers import crossed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Divisions that are simulated at once; where there are more, those near one are.
MOST_PLACED = 5000


@dataclass(frozen=True)
class Passes:
    """Seconds of every run of slots as a stage, [first place, last place]; infinite if none.

    forward_s, input_s, weight_s: of one micro-batch.
    once_s: once a step.
    pace_s: one micro-batch with its share of what is done once a step.
    """

    forward_s: Floats
    input_s: Floats
    weight_s: Floats
    once_s: Floats
    pace_s: Floats


@dataclass(frozen=True)
class Placements:
    """Divisions of a program into stages on given groups of devices.

    schedules: names of the schedules to choose from.
    """

    candidates: Candidates
    schedules: tuple[str, ...]

    def best(
        self, count: int, like: Division, below_s: float, tried: Collection[object]
    ) -> tuple[str, Division] | None:
        """Family of schedules, and the division with the least simulated step.

        Args:
            count: number of micro-batches.
            like: a division into the same number of stages on the same devices.
            below_s: steps from here on are of no use [s].
            tried: (number of micro-batches, key) of divisions to leave out.
        """
        found: list[tuple[float, str, Division]] = []
        for family in dict.fromkeys(map(family_of, in_turns(self.schedules, like.turns))):
            found += self._of_family(count, family, like, below_s, tried)
        return min(found, key=lambda row: row[0])[1:] if found else None

    def _of_family(
        self, count: int, family: str, like: Division, below_s: float, tried: Collection[object]
    ) -> Iterator[tuple[float, str, Division]]:
        """The best division of a family of schedules, with its step; arguments as of `best`."""
        n, stages = self.candidates.bounds.shares.count, len(like.sizes)
        every = math.comb(n - 2, stages - 1) <= MOST_PLACED
        at, best_s = like.places, math.inf
        while True:
            rows = combinations(range(1, n - 1), stages - 1) if every else _near(at)
            places = np.array([(0, *row, n - 1) for row in rows], dtype=np.int64)
            kinds, steps_s = self.steps_s(count, family, like, places, below_s)
            shortest: list[int] = np.argsort(steps_s, kind="stable").tolist()
            order = [
                Division(
                    tuple(places[k].tolist()), like.sizes,
                    tuple(self.kinds[int(kind)] for kind in kinds[k]), float(steps_s[k]), 0.0,
                    like.turns,
                )
                for k in shortest if steps_s[k] < below_s
            ]  # fmt: skip
            left = [one for one in order if (count, one.key) not in tried]
            if every or not order or order[0].step_s >= best_s:
                yield from ((one.step_s, family, one) for one in left[:1])
                return
            at, best_s = order[0].places, order[0].step_s

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of recomputation to choose from; that of a whole stage changes the schedule."""
        return tuple(kind for kind in self.candidates.kinds if kind != "stage")

    def steps_s(
        self, count: int, family: str, like: Division, places: Ints, below_s: float
    ) -> tuple[Ints, Floats]:
        """Number of the recomputation of every stage, [division, stage], and simulated steps [s].

        Args:
            count: number of micro-batches.
            family: family of the schedules.
            like: as of `best`.
            places: of the divisions, [division, stage].
            below_s: divisions with a stage that takes longer are not simulated [s].
        """
        stages, sizes = len(like.sizes), like.sizes
        each = np.zeros((4, stages, len(places)))
        paces = np.zeros((stages, len(places)))
        kinds = np.zeros((len(places), stages), dtype=np.int64)
        for s, flight in enumerate(self._flights(count, family, like)):
            rows = [
                self.passes(StageKind(count, sizes[s], name, like.turns.chunks), flight)
                for name in self.kinds
            ]  # fmt: skip
            runs = places[:, s], places[:, s + 1]
            kinds[:, s] = chosen = np.array([row.pace_s[runs] for row in rows]).argmin(axis=0)
            for k, row in enumerate(rows):
                mine = chosen == k
                at = runs[0][mine], runs[1][mine]
                paces[s, mine] = row.pace_s[at]
                for j, seconds in enumerate((row.forward_s, row.input_s, row.weight_s, row.once_s)):
                    each[j, s, mine] = seconds[at]
        group, groups = np.array(like.turns.group(stages)), stages // like.turns.chunks
        work = [paces[group == g].sum(axis=0) for g in range(groups)]
        able = np.flatnonzero(count * np.max(work, axis=0) < below_s)
        found = np.full(len(places), np.inf)
        if len(able):
            into_s = self._into_s(count, like, places[able])
            forward, inward, weight, once = each[:, :, able]
            seconds = {
                Kind.FORWARD: forward, Kind.BACKWARD: inward + weight,
                Kind.INPUT_GRADIENT: inward, Kind.WEIGHT_GRADIENT: weight, Kind.OPTIMIZER: once,
            }  # fmt: skip
            for name in self.schedules:
                if family_of(name) == family:
                    simulator, _ = simulator_of(name, count, groups, like.turns.chunks)
                    found[able] = np.minimum(found[able], simulator.steps_s(seconds, into_s))
        return kinds, found

    def passes(self, kind: StageKind, flight: int) -> Passes:
        """Seconds of every run as a stage of a kind, with micro-batches in flight."""
        bounds = self.candidates.bounds
        pace_s = bounds.costs(kind, flight, late=False).pace_s
        whole = bounds.whole(kind.count, kind.size)
        finite = np.where(np.isfinite(pace_s), pace_s, 0.0)
        once = np.minimum(whole.price.once_s * bounds.shares.params, kind.count * finite)
        micro = finite - once / kind.count
        forward = np.minimum(whole.price.forward_s * whole.forward, micro)
        known = bounds.known.get(kind, {})
        weight = self._weight_share(kind) * (micro - forward)
        weight[0] = (micro - forward)[0]  # the first stage sends no gradients
        found = [forward, micro - forward - weight, weight, once]
        for at, rows in known.items():
            price = _nearest(rows, flight).price
            exact = (price.forward_s, price.input_gradient_s, price.weight_gradient_s, price.once_s)
            for run in bounds.shares.alike(at):
                for seconds, value in zip(found, exact, strict=True):
                    seconds[run] = value
        forward, inward, weight, once = found
        return Passes(forward, inward, weight, once, pace_s)

    def _weight_share(self, kind: StageKind) -> float:
        """Share of weight gradients in the backward pass of planned stages of a size."""
        prices = [
            row.price for other, runs in self.candidates.bounds.known.items()
            if (other.size, other.recompute) == (kind.size, kind.recompute)
            for rows in runs.values() for row in rows if row.price.input_gradient_s
        ]  # fmt: skip
        back_s = sum(p.input_gradient_s + p.weight_gradient_s for p in prices)
        return sum(p.weight_gradient_s for p in prices) / back_s if back_s else 0.0

    def _flights(self, count: int, family: str, like: Division) -> tuple[int, ...]:
        """Micro-batches in flight on each stage."""
        stages = len(like.sizes)
        if like.turns.chunks > 1:
            return flights_in_turn(count, stages // like.turns.chunks, like.turns)
        return tuple(IN_FLIGHT[family](stages - s, count) for s in range(stages))

    def _into_s(self, count: int, like: Division, places: Ints) -> Floats:
        """Seconds of a transfer into each stage, [stage, division]."""
        transfer_s = self.candidates.transfer_s(count)
        found = np.zeros((len(like.sizes), len(places)))
        for s, g in enumerate(crossed(like.turns.group(len(like.sizes)))):
            first = sum(like.sizes[:g])
            size = min(like.sizes[max(s - 1, 0) : s + 1])
            found[s] = transfer_s(first, size)[places[:, s]] / 2
        return found


def equal_groups(
    last: int, devices: int, groups: Sequence[int], turns: Sequence[Turns]
) -> list[Division]:
    """Divisions into stages of equal numbers of places on equal groups of devices.

    Args:
        last: the last place.
        devices: number of all devices.
        groups: numbers of groups.
        turns: how stages may take turns on them.
    """
    return [
        Division(
            tuple(s * last // n for s in range(n + 1)), (devices // p,) * n, ("none",) * n,
            math.inf, math.inf, each,
        )
        for p in groups for each in turns if (n := p * each.chunks) <= last
    ]  # fmt: skip


def _nearest(rows: Sequence[Known], flight: int) -> Known:
    """The planned stage with the next number of micro-batches in flight."""
    return min(rows, key=lambda row: (abs(row.flight - flight), row.price.microbatch_s))


def _near(places: Sequence[int]) -> list[tuple[int, ...]]:
    """Cuts of a division, and those with one or two of them at the next place or the one before."""
    inner, last = places[1:-1], places[-1]
    found = dict.fromkeys([tuple(inner)])
    for r, s in product(range(len(inner)), repeat=2):
        for a, b in product((-1, 0, 1), repeat=2):
            moved = list(inner)
            moved[r] += a
            moved[s] += b
            if all(i < j for i, j in pairwise((0, *moved, last))):
                found[tuple(moved)] = None
    return [*found]
