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

from ..schedule import IN_FLIGHT, Kind, Turns, family_of, in_turns, late_families
from .candidates import Candidates, flights_in_turn
from .critical_paths import simulator_of
from .dynamic_programme import Division, least_most
from .stage_bounds import Known, StageKind
from .transfers import crossed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Divisions that are simulated at once; where there are more, those near one are.
MOST_PLACED = 5000
ROUNDING = 1e-9  # relative: the same seconds summed in another order


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
class _Cases:
    """Divisions that may be simulated.

    kinds: number of the recomputation of every stage, [division, stage].
    each: seconds of a forward pass, input and weight gradient, and the update, [which, stage,
        division].
    into_s: seconds of a transfer into each stage, [stage, division].
    least_s: lower bound of each step; infinite where a stage does not fit.
    """

    kinds: Ints
    each: Floats
    into_s: Floats
    least_s: Floats


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

    def is_every(self, like: Division) -> bool:
        """Whether all divisions like one are looked at, not only those near it."""
        places = self.candidates.bounds.shares.count - 2
        return math.comb(places, len(like.sizes) - 1) <= MOST_PLACED

    def least_s(self, count: int, like: Division) -> float:
        """Lower bound of all divisions like one, by the work of their groups [s].

        The slowest stage works on all micro-batches; in turns, a group has its share of the least
        work at least.
        """
        found, chunks = math.inf, like.turns.chunks
        for family in dict.fromkeys(map(family_of, in_turns(self.schedules, like.turns))):
            paces = [
                np.min([
                    self.candidates.bounds.costs(
                        StageKind(count, size, name, chunks), flight, late=False
                    ).pace_s
                    for name in self.kinds
                ], axis=0)
                for size, flight in zip(
                    like.sizes, self._flights(count, family, like), strict=True
                )
            ]  # fmt: skip
            if chunks == 1:
                slowest_s = least_most(paces)[1]
            else:
                rest = np.where(np.arange(len(paces[0])) == len(paces[0]) - 1, 0.0, np.inf)
                for pace_s in reversed(paces):
                    rest = (pace_s + rest[None, :]).min(axis=1)
                slowest_s = float(rest[0]) * chunks / len(like.sizes)
            found = min(found, count * slowest_s)
        return found * (1 - ROUNDING)

    def _of_family(
        self, count: int, family: str, like: Division, below_s: float, tried: Collection[object]
    ) -> Iterator[tuple[float, str, Division]]:
        """The best division of a family of schedules, with its step; arguments as of `best`."""
        n, stages = self.candidates.bounds.shares.count, len(like.sizes)
        every, at, best_s = self.is_every(like), like.places, math.inf
        while True:
            rows = combinations(range(1, n - 1), stages - 1) if every else _near(at)
            places = np.array([(0, *row, n - 1) for row in rows], dtype=np.int64)
            first, new = self._shortest(count, family, like, places, below_s, tried)
            if every or first is None or first.step_s >= best_s:
                if new is not None:
                    yield new.step_s, family, new
                return
            at, best_s = first.places, first.step_s

    def _shortest(
        self, count: int, family: str, like: Division, places: Ints, below_s: float,
        tried: Collection[object],
    ) -> tuple[Division | None, Division | None]:  # fmt: skip
        """The division with the least simulated step, and that of those that were not tried.

        Those with the least bounds are simulated first, one and then twice as many as before, until
        none that is left can be shorter: what is found does not depend on how many at once.
        """
        cases = self._cases(count, family, like, places)
        order = np.argsort(cases.least_s, kind="stable")
        order = order[cases.least_s[order] < below_s]
        first: Division | None = None
        new: Division | None = None
        steps_s, ends = np.full(len(places), np.inf), 0
        while ends < len(order):
            limit_s = below_s if new is None else new.step_s
            if cases.least_s[order[ends]] > limit_s:
                break
            some = order[ends : 2 * ends + 1]
            steps_s[some] = self._simulated_s(count, family, like, cases, some)
            ends = 2 * ends + 1
            ranks: list[int] = np.argsort(steps_s, kind="stable").tolist()
            found = [
                Division(
                    tuple(places[k].tolist()), like.sizes,
                    tuple(self.kinds[int(kind)] for kind in cases.kinds[k]), float(steps_s[k]),
                    0.0, like.turns,
                )
                for k in ranks[: int(np.count_nonzero(steps_s < below_s))]
            ]  # fmt: skip
            first = next(iter(found), None)
            new = next((one for one in found if (count, one.key) not in tried), None)
        return first, new

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of recomputation to choose from; that of a whole stage changes the schedule."""
        return tuple(kind for kind in self.candidates.kinds if kind != "stage")

    def steps_s(self, count: int, family: str, like: Division, places: Ints) -> tuple[Ints, Floats]:
        """Number of the recomputation of every stage, [division, stage], and simulated steps [s].

        Args:
            count: number of micro-batches.
            family: family of the schedules.
            like: as of `best`.
            places: of the divisions, [division, stage].
        """
        cases, found = self._cases(count, family, like, places), np.full(len(places), np.inf)
        able = np.flatnonzero(np.isfinite(cases.least_s))
        found[able] = self._simulated_s(count, family, like, cases, able)
        return cases.kinds, found

    def _cases(self, count: int, family: str, like: Division, places: Ints) -> _Cases:
        """Seconds of divisions; arguments as of `steps_s`."""
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
        into_s = self._into_s(count, like, places)
        late = family in late_families(self.schedules)
        least_s = least_simulated_s(count, each, into_s, like.turns.group(stages), late=late)
        least_s = np.maximum(least_s, count * np.max(work, axis=0))
        return _Cases(kinds, each, into_s, least_s * (1 - ROUNDING))

    def _simulated_s(
        self, count: int, family: str, like: Division, cases: _Cases, some: Ints
    ) -> Floats:
        """Steps of some divisions under the best schedule of a family [s]."""
        into_s, (forward, inward, weight, once) = cases.into_s[:, some], cases.each[:, :, some]
        seconds = {
            Kind.FORWARD: forward, Kind.BACKWARD: inward + weight,
            Kind.INPUT_GRADIENT: inward, Kind.WEIGHT_GRADIENT: weight, Kind.OPTIMIZER: once,
        }  # fmt: skip
        found, groups = np.full(len(some), np.inf), len(like.sizes) // like.turns.chunks
        for name in self.schedules if len(some) else ():
            if family_of(name) == family:
                simulator, _ = simulator_of(name, count, groups, like.turns.chunks)
                found = np.minimum(found, simulator.steps_s(seconds, into_s))
        return found

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


def least_simulated_s(
    count: int, each: Floats, into_s: Floats, group: Sequence[int], *, late: bool
) -> Floats:
    """Lower bound of the steps of divisions, under any schedule [s].

    The first micro-batch passes all earlier stages before a group begins, which then works on all
    of them and updates its weights. Its last input gradient, which follows all its forward passes
    and input gradients, goes back through all earlier stages, the first of which ends with a weight
    gradient and its update.

    Args:
        count: number of micro-batches.
        each: as of `_Cases`.
        into_s: as of `_Cases`.
        group: group of devices of each stage.
        late: weight gradients may wait; else they come with input gradients.
    """
    forward, inward, weight, once = each
    if not late:
        inward, weight = inward + weight, np.zeros_like(weight)
    into_s = np.concatenate((np.zeros_like(into_s[:1]), into_s[1:]))
    head, tail = (
        np.cumsum(into_s, axis=0) + np.cumsum(passes, axis=0) - passes
        for passes in (forward, inward)
    )
    found = np.zeros(into_s.shape[1])
    for g in {*group}:
        own = [s for s, mine in enumerate(group) if mine == g]
        until = head[own[0]] + count * (forward + inward)[own].sum(axis=0)
        works = until + count * weight[own].sum(axis=0) + once[own].sum(axis=0)
        found = np.maximum(found, np.maximum(works, until + tail[own[0]] + weight[0] + once[0]))
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
