# pyright: basic
"""The search for a pipeline: estimates divisions, plans the stages of the best, and ranks them.

1. The whole program is planned on a few sizes of sub-mesh and micro-batch (`whole_program_prices`).
2. From these prices a dynamic programme divides it (`divide/dynamic_programme.py`), for each number
of stages.
3. The stages of the most promising division are planned and simulated; the ratio of their costs to
   the estimates corrects the estimates, and step 2 runs with these.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from costmodel import Cluster

from ..common.errors import IndivisibleError, PlanError
from ..common.options import Options
from ..common.request import Request
from ..sharding.search.over_meshes import limit_of
from ..training.training import Training
from .cut.stage_training_step import StageTrainingStep
from .divide.candidates import Candidates
from .divide.corrected_estimates import Estimates
from .divide.dynamic_programme import Division
from .divide.refusal import refusal
from .divide.run_costs import RECOMPUTE, Shares
from .divide.simulated import Ranked
from .divide.space import check_stages, counts, near, sizes, stage_counts
from .schedule import INTERLEAVED, families
from .stage_planner import StagePlanner
from .trials import WORTH, PlannedPipeline, Trials
from .whole_program_prices import Prices

# Divisions whose stages are planned: in all, after the first that fits, and the greatest estimate
# over the best simulated step.
TIME_LIMIT_S = 60.0  # of processor time
MOST_TRIALS, TRIALS = 24, 4
HOPE = 1.0
# A hand-written pipeline is priced if this share of its estimate is below the best step, at most
# for this many numbers of micro-batches until one fits.
DOUBT, COUNTS = 0.9, 3
# Stages on each group of devices to try, if this share of the estimate is below the best step.
CHUNKS, NEARLY = (2, 4), 0.95


@dataclass
class PipelineSearch:
    """One search for a pipeline.

    looked_at: numbers of micro-batches that were priced.
    tried: divisions whose stages were planned; by_hand: hand-written pipelines that were priced.
    """

    training: Training
    request: Request
    looked_at: set[int] = field(default_factory=set)
    tried: set[tuple[object, ...]] = field(default_factory=set)
    by_hand: dict[str, Ranked] = field(default_factory=dict)
    deadline: float = 0.0

    @property
    def machine(self) -> Cluster:
        """The cluster to plan for."""
        return self.request.machine

    @property
    def options(self) -> Options:
        """Settings of the search."""
        return self.request.options

    def __post_init__(self) -> None:
        self.planner = StagePlanner(
            self.training, self.machine, self.options, self.request.say, self.limit
        )  # fmt: skip

    @cached_property
    def shares(self) -> Shares:
        """Share of each run of slots in the costs of the whole program."""
        return Shares(self.planner.loss(self.options.microbatches or 1).chain, self.machine)

    @cached_property
    def estimates(self) -> Estimates:
        """Estimated costs of stages, corrected by planned ones."""
        return Estimates(self.shares)

    @cached_property
    def trials(self) -> Trials:
        """Plans and simulates divisions."""
        return Trials(self.planner, self.shares, self.estimates)

    @cached_property
    def candidates(self) -> Candidates:
        """Source of divisions to try."""
        asked = self.options.microbatches or 1
        return Candidates(self.estimates, self.machine, self.limit, self.kinds, asked)

    @property
    def limit(self) -> float:
        """Memory of a device that a plan may use [byte]."""
        return limit_of(self.options, self.machine)

    def run(self, asked: int | None) -> PlannedPipeline | None:
        """The fastest pipeline that fits; None if none of those tried does.

        Raises:
            PlanError: if the number of stages that was asked for is not possible.
        """
        layers = self.shares.count - 1
        stages = (asked,) if asked else stage_counts(self.machine, layers)
        check_stages(self.machine, asked, layers)
        self.batch = self.options.microbatches or self._examples()
        grid = counts(self.batch, self.options.microbatches)
        self.prices = Prices.begun(self.trials, self.machine, grid, asked)
        self.prices.spread(lambda found: self._fastest(found, stages))
        limit_s = min(self.options.time_limit_s, TIME_LIMIT_S)
        self.deadline = time.process_time() + limit_s  # time for prices excluded
        best: PlannedPipeline | None = None
        self.looked_at.update(self.prices.counts)
        while True:
            found = self._searched(best, stages)
            better = self._beside(found, stages) if found and self.options.baselines else found
            if better is found:
                return better and self._interleaved(self._polished(better))
            best = better

    def _fastest(self, found: Sequence[int], stages: tuple[int, ...]) -> int | None:
        """The number of micro-batches with the fastest estimate; None if no estimate fits."""
        kinds = families(self.options.schedules)
        rows = [
            (one.step_s, m) for m in found for kind in kinds
            for one in self.candidates.divided(m, kind, stages)
        ]  # fmt: skip
        return min(rows)[1] if rows else None

    def _searched(
        self, best: PlannedPipeline | None, stages: tuple[int, ...]
    ) -> PlannedPipeline | None:
        """Plans divisions, the fastest estimate first, and returns the best."""
        kinds = families(self.options.schedules)
        divided = self.candidates.divided
        queue = {(m, kind): divided(m, kind, stages) for m in self.looked_at for kind in kinds}
        left = TRIALS
        for _ in range(MOST_TRIALS):
            options = [
                (one.step_s, count, kind, one)
                for (count, kind), found in queue.items() for one in found
                if (count, kind, one.places, one.sizes, one.recompute) not in self.tried
                and count not in self.trials.unable
            ]  # fmt: skip
            late = best is not None and time.process_time() > self.deadline
            if not options or late or not left:
                break
            step_s, count, kind, one = min(options, key=lambda o: (*o[:3], o[3].places))
            if best and step_s > HOPE * best.ranked.step_s:
                break
            self.tried.add((count, kind, one.places, one.sizes, one.recompute))
            found = self.trial(count, one, kind, best.ranked.step_s if best else float("inf"))
            left -= best is not None and found is not None
            if found and (best is None or found.ranked.step_s < best.ranked.step_s):
                best = found
            fresh = {count}
            if found and not self.options.microbatches:
                fresh |= {m for m in near(count, self.batch) if (m, kind) not in queue}
            self.looked_at |= fresh
            for m in sorted(fresh):
                self.prices.reach(m)
                queue |= {(m, k): divided(m, k, stages) for k in kinds}
        return best

    def _beside(self, best: PlannedPipeline, stages: tuple[int, ...]) -> PlannedPipeline:
        """The best pipeline, or a hand-written one that is faster; both are priced in the same way.

        Each rule is priced at the first number of micro-batches that fits, the fastest estimate
        first; those whose estimate is far above the best step are left out.
        """
        kind = families(self.options.schedules)[0]
        rows: dict[str, list[tuple[float, int, Division]]] = {}
        for count in sorted(self.looked_at - self.trials.unable):
            for name, one in self.candidates.by_hand(count, kind, stages).items():
                rows.setdefault(name, []).append((one.step_s, count, one))
        for name in sorted(rows.keys() - self.by_hand.keys()):
            for _, count, one in sorted(rows[name], key=lambda row: row[:2])[:COUNTS]:
                most_s = best.ranked.step_s / DOUBT
                hoped_s = one.hoped_s(count)
                found = self.trial(count, one, kind, most_s) if hoped_s < most_s else None
                if found is not None:
                    self.by_hand[name] = found.ranked
                    best = min(best, found, key=lambda f: f.ranked.step_s)
                    break
        return best

    def _polished(self, best: PlannedPipeline) -> PlannedPipeline:
        """Plans the slowest stages with more mesh axes, as long as the step gets faster."""
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
        return (
            self.trials.ranked(best.bound, shape, plans, prices, best.across, best.flight) or best
        )

    def _interleaved(self, best: PlannedPipeline) -> PlannedPipeline:
        """The best pipeline, or an interleaved one on its groups of devices if that is faster."""
        groups, count = best.ranked.shape.groups, best.ranked.shape.microbatches
        for chunks in CHUNKS if INTERLEAVED in self.options.schedules else ():
            one = self.candidates.interleaved(count, groups, chunks)
            if one is not None and NEARLY * one.step_s < best.ranked.step_s:
                found = self.trial(count, one, below_s=best.ranked.step_s)
                best = min(best, found or best, key=lambda f: f.ranked.step_s)
        return best

    def lower_bound_s(self, rewritten: Sequence[StageTrainingStep] = ()) -> float:
        """Bound of the step over all pipelines with a number of micro-batches that was priced [s].

        Args:
            rewritten: all stages of the plan if it has rewrites; the bound then also holds for
                pipelines of these programs.
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
        """Examples in a step."""
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
        """Kinds of recomputation to choose from; not by layer if the program has its own."""
        return ("none", "stage") if self.shares.chain.recomputes else RECOMPUTE

    def trial(
        self, count: int, one: Division, flights: str = "1f1b", below_s: float = float("inf")
    ) -> PlannedPipeline | None:
        """A division with its stages planned, under its best schedule; see `Trials.trial`."""
        return self.trials.trial(count, one, flights, below_s)

    def refusal(self) -> PlanError:
        """The error for a search that found no pipeline."""
        tried = bool(self.tried or self.trials.least)
        return refusal(self.trials.least, self.limit, self.machine.name, tried=tried)
