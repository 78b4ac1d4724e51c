# pyright: basic
"""The search for a pipeline: divisions are estimated, the best planned stage by stage and ranked.

1. The whole program is planned on a few sizes of sub-mesh and micro-batch (`StagePlanner.whole`).
2. From these prices a dynamic programme divides it (`inter.divide`), for each number of stages.
3. The stages of the most promising division are planned themselves and simulated; what they turn
   out to cost, over what was estimated, corrects the estimates, and 2 runs again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from costmodel import Cluster

from .emit.pipeline.build import cut_of
from .emit.pipeline.rehearsal import Rehearsal
from .emit.pipeline.stage import Staged
from .errors import IndivisibleError, PlanError
from .inter.divide import Division, Machine, divide
from .inter.estimate import RECOMPUTE, Costs, Shares
from .inter.known import Estimates, Known
from .inter.price import StagePrice
from .inter.rank import Ranked, Shape, ranked
from .inter.space import (
    IN_FLIGHT,
    anchors,
    check_stages,
    counts,
    families,
    near,
    sizes,
    stage_counts,
)
from .options import Options
from .plan import Plan
from .search import USABLE
from .show import bytes_text
from .stages import BoundStages, Say, StageError, StageFound, StagePlanner, Training

# Divisions whose stages are planned, in all and after the first that fits, and how far from the
# best simulated step an estimate may be to be worth it.
MOST_TRIALS, TRIALS = 24, 4
HOPE = 1.0
# A sub-mesh that needs so many times the device-seconds of the best is left out.
WASTE = 2.0
# A stage whose plan was made for less room is planned again if all such stages would be worth it,
# were they faster by the first share, for a step that is faster by the second.
FASTER, WORTH = 0.05, 3e-3
SHORT = 1e-3  # a stage that does not fit needs so much more than there is, if no more is known


@dataclass(frozen=True)
class Found:
    """A pipeline whose stages are planned; `across` bytes go from each to the next.

    flight: micro-batches in flight for which each has room.
    """

    ranked: Ranked
    bound: BoundStages
    plans: tuple[Plan, ...]
    prices: tuple[StagePrice, ...]
    across: tuple[float, ...]
    flight: tuple[int, ...]


@dataclass
class PipelineSearch:
    """One search.

    least: what tried pipelines would need at the worst place [byte].
    looked_at: numbers of micro-batches; unable: those that the loss cannot be computed on.
    """

    training: Training
    machine: Cluster
    options: Options
    say: Say
    start: float
    least: list[float] = field(default_factory=list)
    looked_at: set[int] = field(default_factory=set)
    unable: set[int] = field(default_factory=set)
    deadline: float = 0.0

    def __post_init__(self) -> None:
        self.planner = StagePlanner(
            self.training, self.machine, self.options, self.say, self.limit
        )  # fmt: skip

    @cached_property
    def shares(self) -> Shares:
        """What each run of slots is of the whole program."""
        return Shares(self.planner.loss(self.options.microbatches or 1).chain, self.machine)

    @cached_property
    def estimates(self) -> Estimates:
        """What is known of costs of stages."""
        return Estimates(self.shares)

    @property
    def limit(self) -> float:
        """Bytes that a plan may use on a device."""
        return float(self.options.memory_bytes or USABLE * self.machine.memory_bytes)

    def run(self, asked: int | None) -> Found | None:
        """The fastest pipeline that fits; None if none of those tried does.

        Raises:
            PlanError: if the number of stages asked for cannot be had.
        """
        layers = self.shares.count - 1
        stages = (asked,) if asked else stage_counts(self.machine, layers)
        check_stages(self.machine, asked, layers)
        self.batch = self.options.microbatches or self._examples()
        grid = self._priced(counts(self.batch, self.options.microbatches), asked)
        self.deadline = time.process_time() + self.options.time_limit_s  # without prices
        kinds = families(self.options.schedules)
        best: Found | None = None
        tried: set[tuple[object, ...]] = set()
        queue = {(m, kind): self._divided(m, kind, stages) for m in grid for kind in kinds}
        self.looked_at.update(grid)
        left = TRIALS
        for _ in range(MOST_TRIALS):
            options = [
                (one.step_s, count, kind, one)
                for (count, kind), found in queue.items() for one in found
                if (count, kind, one.places, one.sizes, one.recompute) not in tried
                and count not in self.unable
            ]  # fmt: skip
            late = best is not None and time.process_time() > self.deadline
            if not options or late or not left:
                break
            step_s, count, kind, one = min(options, key=lambda o: (*o[:3], o[3].places))
            if best and step_s > HOPE * best.ranked.step_s:
                break
            tried.add((count, kind, one.places, one.sizes, one.recompute))
            found = self.trial(count, one, kind, best.ranked.step_s if best else float("inf"))
            left -= best is not None and found is not None
            if found and (best is None or found.ranked.step_s < best.ranked.step_s):
                best = found
            fresh = {count}
            if found and not self.options.microbatches:
                fresh |= {m for m in near(count, self.batch) if (m, kind) not in queue}
            self.looked_at |= fresh
            for m in sorted(fresh):
                queue |= {(m, k): self._divided(m, k, stages) for k in kinds}
        return best and self._polished(best)

    def _polished(self, best: Found) -> Found:
        """The slowest stages planned again, on meshes of more axes, while they gain."""
        shape, plans, prices = best.ranked.shape, list(best.plans), list(best.prices)
        tried: set[int] = set()
        while time.process_time() < self.deadline:
            seconds = [p.paced_s(k) for p, k in zip(prices, shape.recompute, strict=True)]
            s = max(range(len(seconds)), key=lambda s: seconds[s])
            if id(plans[s]) in tried:
                break
            tried.add(id(plans[s]))
            below_s = plans[s].step_s * (1 - WORTH)
            found = self.planner.better(best.bound.cut, shape, s, best.flight[s], below_s)
            if found is None:
                break
            for k, old in enumerate(plans):
                if old is plans[s] and best.flight[k] <= best.flight[s]:
                    plans[k], prices[k] = found
        return self._ranked(best.bound, shape, plans, prices, best.across, best.flight) or best

    def _ranked(
        self,
        bound: BoundStages,
        shape: Shape,
        plans: Sequence[Plan],
        prices: Sequence[StagePrice],
        across: tuple[float, ...],
        flight: tuple[int, ...],
    ) -> Found | None:
        """Planned stages under their best schedule; None if that does not fit."""
        order = ranked(shape, prices, across, self.machine, self.limit, self.options.schedules)
        self.least.append(min(r.worst_bytes for r in order))
        if order[0].worst_bytes > self.limit:
            return None
        return Found(order[0], bound, tuple(plans), tuple(prices), across, flight)

    def lower_bound_s(self, rewritten: Sequence[Rehearsal] = ()) -> float:
        """No pipeline of a number of micro-batches that was looked at is faster.

        Args:
            rewritten: all stages of the plan, if it has rewrites: then those of what they do now
                are none the faster either.
        """
        chosen = sizes(self.machine, every=True)
        works: list[float] = []
        for count in sorted(self.looked_at):
            with suppress(IndivisibleError):
                works.append(self.planner.least_work_s(count, chosen))
        if rewritten:
            works.append(sum(self.planner.work_s(stage, chosen) for stage in rewritten))
        return min(works, default=0.0) / self.machine.num_devices

    def _examples(self) -> int:
        """Examples in a step, as far as they are to be cut."""
        for count in (2, 3, 5, 7):
            try:
                parts = self.planner.loss(count).built.parts
            except IndivisibleError:
                continue
            assert parts is not None
            return parts.batch
        return 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of recomputation; a program that says its own is not asked for another."""
        return ("none", "stage") if self.shares.chain.recomputes else RECOMPUTE

    # --- prices -----------------------------------------------------------------------------

    def _priced(self, grid: tuple[int, ...], asked: int | None) -> tuple[int, ...]:
        """Prices the program on sub-meshes; the micro-batches that it can be computed on.

        Every other number, from the middle, and then those that do not lie between two of them.
        """
        each = self.machine.num_devices / asked if asked else 0.0
        found = anchors(self.machine)
        kept = [d for d in found if not asked or each / 4 <= d <= each * 4] or list(found)
        middle, wholes = len(grid) // 2, self.estimates.wholes
        order = sorted(range(len(grid)), key=lambda i: (abs(i - middle) % 2, abs(i - middle), i))
        for i in order:
            count, around = grid[i], grid[max(i - 1, 0) : i + 2 : 2]
            try:
                self.planner.loss(count)
            except IndivisibleError:
                if self.options.microbatches is not None:
                    raise
                self.unable.add(count)  # so few examples
                continue
            for size in kept:
                if (
                    (i - middle) % 2
                    and len(around) == 2
                    and all((m, size) in wholes for m in around)
                ):
                    continue
                self.say(f"{count} micro-batches on {size} devices")
                price = self.planner.whole(count, size)
                if isinstance(price, PlanError):
                    self.least.append(price.needs_bytes * size / self.machine.num_devices)
                else:
                    wholes[count, size] = price
            if i == middle and not asked:
                spent = {d: d * (count * p.microbatch_s + p.once_s) for (_, d), p in wholes.items()}
                most = WASTE * min(spent.values(), default=0.0)
                kept = [d for d in kept if spent.get(d, 0.0) <= most]
        return tuple(m for m in grid if m not in self.unable)

    def _divided(self, count: int, flights: str, stages: tuple[int, ...]) -> list[Division]:
        every = len(stages) == 1
        chosen = sizes(self.machine, every=every)
        costs: dict[tuple[int, str], Costs] = {}
        for size in chosen:
            for kind in self.kinds:
                found = self.estimates.costs(count, size, kind)
                if found is not None:
                    costs[size, kind] = found
        if not costs:
            return []
        scale = (self.options.microbatches or 1) / count
        link = self.machine.network if self.machine.num_hosts > 1 else self.machine.intra_host
        each = link.bandwidth_bytes_per_s / link.shared_by_devices
        across = self.shares.takes_bytes * scale
        transfer_s = {
            d: np.where(across > 0, 2 * (link.latency_s + across / (each * d)), 0.0) for d in chosen
        }
        machine = Machine(
            self.machine.num_devices, self.machine.devices_per_host, chosen, self.limit
        )
        return divide(
            costs, transfer_s, machine, count, stages=stages, in_flight=IN_FLIGHT[flights]
        )

    # --- trials -----------------------------------------------------------------------------

    def trial(
        self, count: int, one: Division, flights: str = "1f1b", below_s: float = float("inf")
    ) -> Found | None:
        """A division with its stages planned, under its best schedule.

        Args:
            count: micro-batches.
            one: the division.
            flights: kind of schedule whose micro-batches in flight have to fit.
            below_s: only steps below are of interest.

        Returns:
            None if it does not fit, or is seen not to be below.
        """
        try:
            loss = self.planner.loss(count)
        except IndivisibleError:
            if self.options.microbatches is not None:
                raise
            self.unable.add(count)
            return None
        cuts = tuple(self.shares.places[j] for j in one.places)
        shape = Shape(cuts, one.sizes, count, one.recompute)
        p = len(one.sizes)
        self.say(f"{p} stages on {'+'.join(map(str, one.sizes))} devices, {count} micro-batches")
        cut = cut_of(loss, cuts, one.recompute)
        across = tuple(loss.chain.across[c] for c in cuts[1:-1])
        flight = tuple(IN_FLIGHT[flights](p - s, count) for s in range(p))
        stages = self._stages(cut, shape, one, flight, below_s)
        if stages is None:
            return None
        plans, prices = zip(*stages, strict=True)
        bound = BoundStages(loss, cut, self.training.optimizer)
        return self._ranked(bound, shape, plans, prices, across, flight)

    def _stages(
        self, cut: Staged, shape: Shape, one: Division, flight: Sequence[int], below_s: float
    ) -> list[StageFound] | None:
        """Every stage planned; None if one does not fit, or the step is not below.

        Those with most micro-batches in flight come first: equal stages may have their plans.
        Where these leave room, stages are planned again if the step would gain by it.
        """
        count, planner = shape.microbatches, self.planner
        found: dict[int, StageFound] = {}
        loose: list[int] = []
        short = False
        for s in sorted(range(len(flight)), key=lambda s: -flight[s]):
            answer = planner.roomier(cut, shape, s, flight[s])
            if answer is not None:
                loose.append(s)
            else:
                answer = planner.stage(cut, shape, s, flight[s])
            if isinstance(answer, StageError):
                self.least.append(answer.needs_bytes)
                self._fails(one, count, s, flight[s], answer)
                short = True
                continue  # the others tell of further divisions
            found[s] = answer
            price, size, kind = answer[1], shape.sizes[s], shape.recompute[s]
            self.estimates.learn(count, size, kind, (one.places[s], one.places[s + 1]), price)
            seconds = [f[1].paced_s(shape.recompute[k]) for k, f in found.items()]
            if not loose and _step_s(seconds, count) > below_s:
                return None
        if short:
            return None
        seconds = [found[s][1].paced_s(shape.recompute[s]) for s in range(len(flight))]
        hoped = [t * (1 - FASTER * (s in loose)) for s, t in enumerate(seconds)]
        if _step_s(hoped, count) < (1 - WORTH) * _step_s(seconds, count):
            for s in reversed(loose):
                answer = planner.stage(cut, shape, s, flight[s])
                if not isinstance(answer, StageError):
                    found[s] = min(answer, found[s], key=lambda f: f[0].step_s)
        return [found[s] for s in range(len(flight))]

    def _fails(self, one: Division, count: int, s: int, flight: int, error: StageError) -> None:
        """Corrects the estimates by what a stage that does not fit would need."""
        at, size, kind = (one.places[s], one.places[s + 1]), one.sizes[s], one.recompute[s]
        over = self.limit * (1 + SHORT)
        if error.alone is None:  # what is computed again by stage does not help it
            known = Known(float("inf"), max(error.needs_bytes, over), 0.0, fits=False)
            for same in ("none", "stage") if kind in ("none", "stage") else (kind,):
                self.estimates.note(count, size, same, at, known)
            return
        price = error.alone
        micro = price.paced_s(kind) + price.once_s / count
        more = max(over - price.held_bytes, 0.0) / (flight - 1)
        known = Known(micro, price.held_bytes, more, fits=False)
        self.estimates.note(count, size, kind, at, known)

    def refusal(self) -> PlanError:
        """Why nothing that was asked for fits."""
        least = min((x for x in self.least if x > self.limit), default=0.0)
        remedy = "use more devices or micro-batches, or another number of stages"
        if not least:
            return PlanError(
                f"no pipeline was found that fits {bytes_text(self.limit)} on each device, though "
                "one may exist", kind="does-not-fit", where=self.machine.name, remedy=remedy,
            )  # fmt: skip
        return PlanError(
            f"does not fit: the leanest pipeline tried needs {bytes_text(least)} on some device, "
            f"{bytes_text(least - self.limit)} more than the limit of {bytes_text(self.limit)}",
            kind="does-not-fit", where=self.machine.name, remedy=remedy, needs_bytes=least,
        )  # fmt: skip


def _step_s(seconds: Sequence[float], count: int) -> float:
    """No pipeline of such stages is faster."""
    return sum(seconds) + (count - 1) * max(seconds)
