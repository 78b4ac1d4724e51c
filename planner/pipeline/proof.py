"""Plans the divisions that may still be better than the best pipeline, until none is left.

The search by estimates finds a good pipeline, but its estimates are no bounds. Here every division
whose lower bound is below the best step is listed, for each number of micro-batches and way to
schedule. Micro-batches of their stages are bounded by the solver, as those of stages like them,
which leaves few. The one with the least bound comes first. What is not known of its stages is found
out in this order, and it is put back with the bound that follows:

1. each stage is bounded by the solver without a limit of memory, whatever it computes again;
2. each stage is planned within the limit, without recomputation;
3. where that takes longer than its bound, with each kind of recomputation;
4. the pipelines of these stages are simulated.

Where there are too many divisions to list, or too much to solve (`MOST_WORK`, counted, not timed),
the rest is left to the estimates, and the bound is the least of what was not solved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

from ..sharding.search.asked import may_offload
from .cut.opened_loss import cut_of
from .divide.candidates import Candidates
from .divide.dynamic_programme import EXACT, Division
from .divide.listing import Least, least_step_s
from .divide.simulated import PipelineShape
from .divide.stage_bounds import StageKind
from .divide.stage_price import StagePrice
from .open_divisions import Open, OpenDivisions, least_of
from .schedule import ONE_EACH, Turns, turned
from .stage_floors import StageFloors
from .stage_planner import NEAR, StageError
from .trials import PlannedPipeline, Trials, flight_of

# Work of all stages that are traced and solved, see `StageFloors.work`: 67 stages of 300 ops on 2
# devices take 3.2e5 and 15 s of a processor. The bound is raised until it is so close to the step.
MOST_WORK, CLOSE = 4e5, 0.03
# The part of it after which divisions are listed no further: the ten small models that are compared
# with every pipeline there is need up to 2.4e4 to list all that may be better.
MOST_LISTING = 5e4
# Work of bounding a stage on the finest meshes, as a share of that of planning it: 0.2 s and 0.4 on
# 4 devices, 1.0 and 1.6 on 8 (runs of a GPT of 8 layers).
GLIMPSED = 1 / 3
MOST_OPENED = 1000  # divisions that are left, beyond which none is solved
MOST_TRIED = 200  # pipelines that are simulated; 200 of a small model take about 4 s
MOST_UNITS = 16  # distinct runs between neighbouring places whose ops are priced


@dataclass
class Proof:
    """The divisions that are left, and what is known of their stages.

    prices: stages that were planned by kind, equal runs and micro-batches in flight; None for one
        that does not fit.
    opened: the divisions that were listed.
    is_complete: whether no division that is left can be better than the best by more than the
        tolerance of solves.
    left: work that is left, of `MOST_WORK`.
    """

    trials: Trials
    candidates: Candidates
    floors: StageFloors
    prices: dict[tuple[StageKind, tuple[int, int], int], StagePrice | None] = field(
        default_factory=dict[tuple[StageKind, tuple[int, int], int], "StagePrice | None"]
    )
    opened: list[Open] = field(default_factory=list[Open])
    is_complete: bool = False
    left: float = field(default_factory=lambda: MOST_WORK)

    def of_all(self, limit_s: float) -> Proof:
        """The same with bounds that hold for stages with values on the host, where these may be.

        Divisions are planned by bounds of stages with nothing there, which tell more apart.

        Args:
            limit_s: step from which on bounds need not be sharp [s].
        """
        planner = self.trials.planner
        if not may_offload(planner.options, planner.machine):
            return self
        floors, own = self.floors.with_hosts(), self.divisions
        found = Proof(self.trials, self.candidates, floors, left=self.left)
        found.divisions.begin(own.counts, own.stages, own.turns, limit_s)
        return found

    @cached_property
    def divisions(self) -> OpenDivisions:
        """Lists divisions, and bounds them."""
        return OpenDivisions(self.candidates, self.floors, self.trials.planner.options.schedules)

    def run(
        self,
        best: PlannedPipeline | None,
        below_s: float,
        counts: Sequence[int],
        families: Sequence[str],
        stages: Sequence[int],
        turns: Sequence[tuple[int, Turns]],
    ) -> PlannedPipeline | None:
        """The best pipeline.

        Args:
            best: the best one so far.
            below_s: step from which on others are of no use, if there is none [s].
            counts: numbers of micro-batches.
            families: families of schedules.
            stages: numbers of stages.
            turns: (groups of devices, how stages take turns on them).
        """
        best_s = best.ranked.step_s if best else below_s
        self.divisions.begin(counts, stages, turns, best_s * (1 - EXACT))
        is_little = self._open(best_s, families)
        queue = [(self.bound_s(one), k, one) for k, one in enumerate(self.opened)]
        heapify(queue)
        tried, seen = 0, set[tuple[object, ...]]()
        while queue and is_little and tried < MOST_TRIED and self.left > 0:
            bound_s, number, one = heappop(queue)
            if bound_s >= best_s * (1 - EXACT):
                queue = []
                break
            now_s = self.bound_s(one)
            if now_s > bound_s:
                heappush(queue, (now_s, number, one))
            elif self._learnt(one):
                heappush(queue, (self.bound_s(one), number, one))
            else:
                for division in self._divisions(one, best_s):
                    known = one.count, division.key, self._prices(one, division)
                    if known in seen:
                        continue  # ways to schedule differ in the memory that stages have
                    seen.add(known)
                    tried += 1
                    found = self.trials.trial(one.count, division, one.family)
                    if found and found.ranked.step_s < best_s:
                        best, best_s = found, found.ranked.step_s
        self.is_complete = self.divisions.least_s >= best_s * (1 - EXACT) and not queue
        return best

    def _open(self, best_s: float, families: Sequence[str]) -> bool:
        """Takes the divisions below the best step, with micro-batches of stages bounded.

        Returns:
            Whether that is all of them, and few enough to plan their stages.
        """
        limit_s = best_s * (1 - EXACT)
        while self.left > max(MOST_WORK - MOST_LISTING, 0.0) and len(self.opened) <= MOST_OPENED:
            one = self.divisions.next(limit_s)
            if one is None:
                break
            if not isinstance(one, Open):
                self._prove_passes(*one)
                continue
            self.divisions.take()
            names = families if one.turns == ONE_EACH else (turned(one.turns),)
            for family in names:
                flight = flight_of(one.count, _division(one, ()), family)
                self.opened.append(replace(one, family=family, flight=flight))
            if self.work() > self.left:
                break
        return self.divisions.least_s >= limit_s and self.work() <= self.left

    def _prove_passes(
        self, count: int, size: int, at: tuple[int, int], flight: int, chunks: int
    ) -> None:
        self.floors.prove_passes(count, size, at, flight, chunks)
        self.divisions.rose(count, size)
        self.left -= GLIMPSED * self.floors.work(count, size, at)

    def work(self) -> float:
        """Work of solving the distinct stages of all divisions without a limit of memory."""
        alike = self.floors.shares.alike
        found = {
            (one.count, size, alike(one.run(s))[0])
            for one in self.opened for s, size in enumerate(one.sizes)
        }  # fmt: skip
        return sum(self.floors.work(*stage) for stage in sorted(found))

    def lower_bound_s(self, step_s: float) -> float:
        """Lower bound of all pipelines, whatever the plans of their stages [s].

        Stages of the divisions with the least bounds are solved until it is close to a step [s].
        """
        for one in {one.key: one for one in self.opened}.values():
            self.divisions.put(one)
        self.opened = []
        while (one := self.divisions.next(step_s * (1 - CLOSE))) is not None and self.left > 0:
            if not isinstance(one, Open):
                self._prove_passes(*one)
                continue
            rest = [(size, s) for s, size in enumerate(one.sizes)
                    if not self.floors.is_proved(*self._stage(one, s))]  # fmt: skip
            if not rest:
                break
            self._prove(one, max(rest, key=lambda row: row[0])[1])
        return self.divisions.least_s

    def bound_s(self, one: Open) -> float:
        """Lower bound of all pipelines of a division [s]."""
        stages = [self._floor(one, s) for s in range(len(one.sizes))]
        return self.divisions.with_schedule(one, least_of(one, stages))

    def _stage(self, one: Open, s: int) -> tuple[int, int, tuple[int, int], int, int]:
        """A stage, with the micro-batches in flight that it has at least, and stages in turn."""
        known = one.flight[s : s + 1] or (self.divisions.flight(one.count, one.left(s), one.turns),)
        return one.count, one.sizes[s], one.run(s), known[0], one.turns.chunks

    def _key(self, one: Open, s: int, kind: str) -> tuple[StageKind, tuple[int, int], int]:
        run = self.floors.shares.alike(one.run(s))[0]
        return StageKind(one.count, one.sizes[s], kind, one.turns.chunks), run, one.flight[s]

    def _kinds(self, one: Open, s: int) -> tuple[str, ...]:
        """Kinds of recomputation that may be best: none alone where it is as good as its bound."""
        price = self.prices.get(self._key(one, s, "none"))
        if price is not None:
            count, size, run, *more = self._stage(one, s)
            least_s = float(self.floors.least(count, size, *more).step_s[run])
            if _step_s(price, "none", one.count) <= least_s * (1 + 2 * NEAR):
                return ("none",)
        return self.candidates.kinds

    def _floor(self, one: Open, s: int) -> Least:
        """Least seconds of a stage, whatever it computes again."""
        rows, (count, size, run, *more) = list[Least](), self._stage(one, s)
        for kind in self._kinds(one, s):
            key = self._key(one, s, kind)
            price = self.prices.get(key)
            if price is not None:
                rows.append(_least_of(price, kind, one.count))
            elif key not in self.prices:
                least, fits = self.floors.of_kind(count, size, kind, *more)
                if fits[run]:
                    rows.append(Least(*(float(each[run]) for each in (
                        least.forward_s, least.forward_s + least.back_s,
                        least.floor_s + least.once_s, least.step_s,
                    ))))  # fmt: skip
        if not rows:
            return Least(*(float("inf"),) * 4)
        return Least(*(min(each) for each in zip(*rows, strict=True)))

    def _learnt(self, one: Open) -> bool:
        """Solves a stage of which something is not known; False if all is known."""
        order = sorted(range(len(one.sizes)), key=lambda s: -one.flight[s])
        for s in order:
            if not self.floors.is_proved(*self._stage(one, s)):
                self._prove(one, s)
                return True
        for s in order:
            for kind in ("none", *self._kinds(one, s)):
                if self._key(one, s, kind) not in self.prices:
                    self._plan(one, s, kind)
                    return True
        return False

    def _prove(self, one: Open, s: int) -> None:
        self.left -= GLIMPSED * self.floors.work(one.count, one.sizes[s], one.run(s))
        self.floors.prove(*self._stage(one, s))
        self.divisions.rose(one.count, one.sizes[s])

    def _plan(self, one: Open, s: int, kind: str) -> None:
        count, size, run, *more = self._stage(one, s)
        if not self.floors.of_kind(count, size, kind, *more)[1][run]:
            self.prices[self._key(one, s, kind)] = None
            return
        self.left -= self.floors.work(one.count, one.sizes[s], one.run(s))
        planner, places = self.trials.planner, self.floors.shares.places
        kinds = tuple(kind if r == s else "none" for r in range(len(one.sizes)))
        cuts = tuple(places[k] for k in one.places)
        shape = PipelineShape(cuts, one.sizes, one.count, kinds, one.turns)
        cut = cut_of(planner.loss(one.count), cuts, kinds)
        found = planner.stage(cut, shape, s, one.flight[s])
        price = None if isinstance(found, StageError) else found[1]
        if isinstance(found, StageError):
            self.trials.least.append(found.needs_bytes)
        self.prices[self._key(one, s, kind)] = price

    def _prices(self, one: Open, division: Division) -> tuple[StagePrice | None, ...]:
        """Prices of the planned stages of a division."""
        return tuple(
            self.prices[self._key(one, s, kind)] for s, kind in enumerate(division.recompute)
        )

    def _divisions(self, one: Open, best_s: float) -> Iterator[Division]:
        """The pipelines of planned stages whose bound is below the best step."""
        kinds = [
            [(kind, price) for kind in self._kinds(one, s)
             if (price := self.prices[self._key(one, s, kind)]) is not None]
            for s in range(len(one.sizes))
        ]  # fmt: skip
        chosen: list[tuple[tuple[str, ...], tuple[Least, ...]]] = [((), ())]
        for s, options in enumerate(kinds):
            rest = tuple(self._floor(one, r) for r in range(s + 1, len(kinds)))
            longer = [
                ((*names, kind), (*stages, _least_of(p, kind, one.count)))
                for names, stages in chosen for kind, p in options
            ]  # fmt: skip
            chosen = [
                row for row in longer
                if least_step_s((*row[1], *rest), one.moved_s, one.group, one.count)
                < best_s * (1 - EXACT)
            ]  # fmt: skip
        for names, _ in chosen:
            yield _division(one, names)


def _division(one: Open, kinds: tuple[str, ...]) -> Division:
    return Division(one.places, one.sizes, kinds, 0.0, 0.0, one.turns)


def _step_s(price: StagePrice, kind: str, count: int) -> float:
    return count * price.paced_s(kind) + price.once_s


def _least_of(price: StagePrice, kind: str, count: int) -> Least:
    """Seconds of a planned stage; it may compute again before a gradient comes in."""
    both_s = price.forward_s + price.input_gradient_s
    one_s = price.microbatch_s + price.once_s
    return Least(price.forward_s, both_s, one_s, _step_s(price, kind, count))
