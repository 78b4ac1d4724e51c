# pyright: basic
"""The search for a pipeline: the division with the least estimate is planned, until none is better.

1. The whole program is planned on a few sizes of sub-mesh and numbers of micro-batches, from which
   lower estimates of all stages follow (`divide/stage_bounds.py`).
2. For each number of micro-batches and family of schedules, a dynamic programme finds the division
   with the least estimate (`divide/dynamic_programme.py`).
3. The stages of the least of all are planned; their prices replace the estimates, and step 2 is
   repeated where they count, until the least estimate is no better than the best pipeline.
4. Where few divisions have a lower bound below its step, these are planned too (`proof.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from ..common.errors import IndivisibleError, PlanError
from ..common.request import OutOfTimeError, Request
from ..common.units_text import seconds_text
from ..sharding.held import check_held
from ..sharding.search.over_meshes import limit_of
from ..training.training import Training
from .cut.stage_training_step import StageTrainingStep
from .divide.candidates import Candidates
from .divide.dynamic_programme import EXACT, Division
from .divide.placed import Placed, rows_of
from .divide.placements import Placements, equal_groups
from .divide.refusal import refusal
from .divide.run_costs import RECOMPUTE, Shares
from .divide.simulated import Ranked, ranked
from .divide.sources import Chain, InTurn, Source
from .divide.space import check_stages, counts, group_counts, sizes, stage_counts
from .divide.stage_bounds import StageBounds
from .other_divisions import OtherDivisions
from .proof import CLOSE, MOST_UNITS, Proof
from .schedule import ONE_EACH, all_turns, families, family_of, late_families
from .stage_choices import least_step_s
from .stage_floors import StageFloors
from .stage_planner import StagePlanner
from .trials import PlannedPipeline, Trials
from .unlimited import Unlimited
from .whole_program_prices import price_wholes

MOST_PLANS = 160  # stages that are planned; the estimates of a search that ends here are no proof
# Divisions in a row that are no better than the best before the search by estimates ends: 1 or 2 on
# the models of `benchmarks pipeline-search`; where transfers take most of a step, simulated steps
# are a fifth above their estimates, and hundreds of divisions lie between.
MOST_VAIN = 40
# The same of divisions that were simulated: 0 to 3 on these models, 11 in one of
MOST_VAIN_PLACED = 20  # `tests/planner/pipeline/test_other_divisions.py`, most of which do not fit
# A hand-written pipeline is priced if this share of its estimate is below the best step: a GPT of
# 24 layers on two hosts takes 6 % less than its estimate. That is done for at most this many
# numbers of micro-batches until one fits.
DOUBT, COUNTS = 0.9, 3
Found = PlannedPipeline | None


@dataclass
class PipelineSearch:
    """One search for a pipeline.

    below_s: step from which on pipelines are of no use [s].
    by_hand: hand-written pipelines that were priced.
    tried: number of divisions whose stages were planned.
    """

    training: Training
    request: Request
    below_s: float = math.inf
    tried: int = 0
    by_hand: dict[str, Ranked] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.machine, self.options = self.request.machine, self.request.options
        self.planner = StagePlanner(
            self.training, self.machine, self.options, self._say, self.limit
        )  # fmt: skip

    @property
    def best(self) -> PlannedPipeline | None:
        """The fastest pipeline that was planned and fits, so far."""
        return self.trials.best if "trials" in vars(self) else None  # not made to be asked

    def _say(self, line: str) -> None:
        """Tells of progress; ends the search at the time limit, once there is a plan."""
        if self.request.out_of_time and (self.best is not None or self.below_s < math.inf):
            raise OutOfTimeError
        self.request.say(line)

    @cached_property
    def shares(self) -> Shares:
        """Share of each run of slots in the costs of the whole program."""
        return Shares(self.planner.loss(self.first_count).chain, self.machine)

    @cached_property
    def bounds(self) -> StageBounds:
        """Lower estimates of stages, exact where they were planned."""
        return StageBounds(self.shares, self._held_bytes(), self.limit)

    @cached_property
    def trials(self) -> Trials:
        """Plans and simulates divisions."""
        return Trials(self.planner, self.shares, self.bounds)

    @cached_property
    def candidates(self) -> Candidates:
        """Source of divisions to try."""
        late = late_families(self.options.schedules)
        return Candidates(self.bounds, self.machine, self.kinds, self.first_count, late)

    @cached_property
    def floors(self) -> StageFloors:
        """Lower bounds of stages with nothing on the host."""
        kinds = tuple(kind for kind in self.kinds if kind != "stage")
        return StageFloors(self.planner, self.shares, sizes(self.machine), kinds)

    @cached_property
    def proof(self) -> Proof:
        """Plans the divisions that may still be better than those chosen by estimates."""
        return Proof(self.trials, self.candidates, self.floors)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Numbers of micro-batches to choose from."""
        return counts(self._examples(), self.options.microbatches)

    @cached_property
    def first_count(self) -> int:
        """The number of micro-batches at which slots are counted: the least above 1, if possible.

        The loss of the whole batch may have slots of its own.
        """
        asked = self.options.microbatches
        if asked is not None:
            return asked
        for count in self.counts[1:]:
            with suppress(IndivisibleError):
                self.planner.loss(count)
                return count
        return 1

    @property
    def limit(self) -> float:
        """Memory of a device that a plan may use [byte]."""
        return limit_of(self.options, self.machine)

    def run(self, asked: int | None) -> PlannedPipeline | None:
        """The fastest pipeline that fits; None if none of those tried does.

        Raises:
            PlanError: if the number of stages that was asked for is not possible.
            HeldError: if parameters, optimizer state and gradients do not fit.
            OutOfTimeError: at the time limit, if there is `best` or a step `below_s`.
        """
        layers = self.shares.count - 1
        check_stages(self.machine, asked, layers)
        stages = (asked,) if asked else stage_counts(self.machine, layers)
        check_held(self._held_bytes(), self.limit, self.machine, "parameters, state and gradients")
        price_wholes(self.trials, self.machine, self.counts, self.kinds)
        best = self._searched(stages) or self._beside(None, stages)
        best = self._proved(self._climbed(best, stages), stages)
        if best is None and self.below_s == math.inf:
            return self._unlimited.fitted(self._able, stages)
        if best and self.options.baselines:
            best = self._beside(best, stages)
        others, likes = self._others, self._likes(stages)
        if best is None:  # 3 % below one program of a GPT of two layers, with 0.7 of its memory
            return others.best_below(self.below_s, self._able, likes)
        best = others.best_with_choices(best, self._able, likes)
        return best if self.request.over else self._unlimited.faster(best, stages)

    @property
    def _others(self) -> OtherDivisions:
        """Divisions in which choices of stages may pay."""
        schedules = self.options.schedules
        return OtherDivisions(self.trials, self.candidates, schedules, lambda: self.request.over)

    @property
    def _unlimited(self) -> Unlimited:
        """Divisions planned without a limit of memory."""
        return Unlimited(self.trials, self.candidates, families(self.options.schedules)[0])

    @property
    def _able(self) -> list[int]:
        """Numbers of micro-batches with the slots of the search."""
        return [m for m in self.counts if self.trials.is_able(m)]

    def _likes(self, stages: tuple[int, ...]) -> list[Division]:
        """Divisions into stages on the groups of devices tried so far, and on equal ones."""
        groups = group_counts(self.machine, stages)
        turns = (ONE_EACH, *all_turns(self.options.schedules))
        equal = equal_groups(self.shares.count - 1, self.machine.num_devices, groups, turns)
        return [*{(o.sizes, o.turns): o for o in (*equal, *self.trials.divisions)}.values()]

    def _sources(self, stages: tuple[int, ...]) -> list[Source]:
        """Where divisions come from: one for each number of micro-batches and way to schedule."""
        given, groups = self.options.schedules, group_counts(self.machine, stages)
        able = self._able
        found: list[Source] = [
            Chain(self.candidates, m, family, stages) for m in able for family in families(given)
        ]
        found += [InTurn(self.candidates, m, p, each)
                  for m in able for p in groups for each in all_turns(given)]  # fmt: skip
        return found

    def _searched(self, stages: tuple[int, ...]) -> PlannedPipeline | None:
        """Plans divisions, the least estimate first, and returns the best."""
        best: PlannedPipeline | None = None
        best_s = self.below_s
        sources, vain = self._sources(stages), 0
        while self.planner.solved < MOST_PLANS and vain < MOST_VAIN and sources:
            source = min(sources, key=lambda source: source.least_s)
            if source.least_s >= best_s * (1 - EXACT):
                break
            if not source.is_current:
                if not source.estimate(best_s):
                    sources.remove(source)
                continue  # another may have a lower estimate now
            assert source.division is not None
            found, vain = self._tried(source, source.division, best_s), vain + 1
            for other in sources:
                if other.count == source.count:
                    other.is_current = False
            if found and found.ranked.step_s < best_s:
                best, best_s, vain = found, found.ranked.step_s, 0
                self.request.say(f"best pipeline: step {seconds_text(best_s)}")
        return best

    def _placed(self, best: Found, stages: tuple[int, ...]) -> Found:
        """Moves the cuts of pipelines tried so far, and of equal groups of devices.

        Of all numbers of micro-batches, the division with the least simulated step comes first;
        that is repeated until none is shorter, or `MOST_VAIN_PLACED` in a row were not.
        """
        placements = Placements(self.candidates, self.options.schedules)
        best_s = best.ranked.step_s if best else self.below_s
        placed, vain = Placed(placements, rows_of(self._able, self._likes(stages))), 0
        while vain < MOST_VAIN_PLACED and self.planner.solved < MOST_PLANS:
            found = placed.best(best_s, self.trials.tried)
            if found is None or found[-1].step_s >= best_s * (1 - EXACT):
                break
            count, family, one = found
            placed.forget(count)
            vain += 1
            tried = self.trials.trial(count, one, family)
            if tried and tried.ranked.step_s < best_s:
                best, best_s, vain = tried, tried.ranked.step_s, 0
        return best

    def _climbed(self, best: Found, stages: tuple[int, ...]) -> Found:
        """Changes the recomputation of equal stages, and moves the cuts.

        That is repeated as long as it makes the step shorter.
        """
        while best is not None or self.below_s < math.inf:
            now = best = self._placed(best, stages)
            if now is None or best is None or self.floors.distinct > MOST_UNITS:
                break
            family = family_of(now.ranked.schedule)
            for one in self._other_kinds(now):
                if (now.ranked.shape.microbatches, one.key) not in self.trials.tried:
                    found = self.trials.trial(now.ranked.shape.microbatches, one, family)
                    best = min(best, found or best, key=lambda f: f.ranked.step_s)
            if best is now or self.planner.solved >= MOST_PLANS:
                break
        return best

    def _other_kinds(self, best: PlannedPipeline) -> Iterator[Division]:
        """The pipeline with another recomputation of equal stages, where bounds leave room for it.

        A stage takes at least its bound under the other kind; with that, the step must be shorter.
        """
        shape, schedules = best.ranked.shape, self.options.schedules
        places = tuple(self.shares.places.index(cut) for cut in shape.cuts)
        runs = [self.shares.alike(run)[0] for run in pairwise(places)]
        stages = [*zip(runs, shape.sizes, shape.recompute, strict=True)]
        for one in dict.fromkeys(stages):
            run, size, old = one
            now_s = best.ranked.stage_s[stages.index(one)]
            for kind in self.floors.kinds:
                least_s = self.floors.of_kind_s(shape.microbatches, size, run, kind)
                if kind == old or least_s >= now_s:
                    continue
                prices = [p.faster(least_s / now_s) if other == one else p
                          for p, other in zip(best.prices, stages, strict=True)]  # fmt: skip
                kinds = tuple(kind if other == one else other[2] for other in stages)
                fast = ranked(shape, prices, best.across, self.machine, math.inf, schedules)[0]
                if fast.step_s < best.ranked.step_s:
                    yield Division(places, shape.sizes, kinds, fast.step_s, 0.0, shape.turns)

    def _proved(self, best: Found, stages: tuple[int, ...]) -> Found:
        """The best pipeline, after those that may still be better."""
        if self.floors.distinct > MOST_UNITS:
            return best
        given, groups = self.options.schedules, group_counts(self.machine, stages)
        turns = [(p, each) for p in groups for each in all_turns(given)]
        return self.proof.run(best, self.below_s, self._able, families(given), stages, turns)

    def _tried(self, source: Source, one: Division, best_s: float) -> PlannedPipeline | None:
        """The division with its stages planned, unless its estimate rises above the best step."""
        self.tried += 1

        def is_hopeful() -> bool:
            return source.again(one).step_s < best_s

        found = self.trials.trial(source.count, one, source.family, is_hopeful)
        if source.again(one).step_s < best_s:
            source.drop(one)  # it was simulated, or needs more memory than its stages alone
        return found

    def _beside(self, best: Found, stages: tuple[int, ...]) -> Found:
        """The best pipeline, or a hand-written one that is faster; both are priced in the same way.

        Each rule is priced at the first number of micro-batches that fits, the fastest estimate
        first; those whose estimate is far above the best step are left out. All numbers are tried
        as long as there is no pipeline.
        """
        family = families(self.options.schedules)[0]
        rows: dict[str, list[tuple[float, int, Division]]] = {}
        for count in self.counts:
            if self.trials.is_able(count):
                for name, one in self.candidates.by_hand(count, family, stages).items():
                    rows.setdefault(name, []).append((one.step_s, count, one))
        for name in sorted(rows):
            order = sorted(rows[name], key=lambda row: row[:2])
            for step_s, count, one in order[: COUNTS if best else len(order)]:
                best_s = best.ranked.step_s if best else self.below_s
                if DOUBT * step_s >= best_s or step_s == math.inf:
                    break
                found = self.trials.trial(count, one, family)
                if found is not None:
                    self.by_hand[name] = found.ranked
                    if found.ranked.step_s < best_s:
                        best = found
                    break
        return best

    def lower_bound_s(self, step_s: float, rewritten: Sequence[StageTrainingStep] = ()) -> float:
        """Bound of the step over all pipelines with any number of micro-batches [s].

        It holds for the kinds of recomputation, whatever waits on the host, and for the choices of
        the best pipeline in it.

        Args:
            step_s: step of the plan, beyond which the bound need not be sharp.
            rewritten: all stages of the plan if it has rewrites; the bound then also holds for
                pipelines of these programs.
        """
        # the proof has no pipelines of other slots, nor of programs that were rewritten
        is_listed = not rewritten and self.proof.divisions.has_begun
        chosen, works = sizes(self.machine), list[float]()
        others = [m for m in self.counts if not (is_listed and self.trials.is_known(m))]
        for count in others:
            with suppress(IndivisibleError):
                works += [
                    self.planner.least_work_s(count, chosen, kind) for kind in self.floors.kinds
                ]
        if rewritten:
            works.append(sum(self.planner.work_s(stage, chosen) for stage in rewritten))
        least_s = min(works, default=math.inf) / self.machine.num_devices
        if self.best is not None:
            least_s = min(least_s, least_step_s(self.best, self.trials))
        if is_listed:
            # beyond the least of the others it does not count
            step_s = min(step_s, least_s / (1 - CLOSE))
            least_s = min(least_s, self.proof.of_all(step_s).lower_bound_s(step_s))
        return least_s if least_s < math.inf else 0.0

    def _held_bytes(self) -> int:
        """Bytes of parameters, optimizer state and sums of gradients, of all devices together."""
        return self.planner.loss(self.first_count).held_bytes()

    def _examples(self) -> int:
        """Examples in a step; 1 if the loss cannot be divided."""
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

    def refusal(self) -> PlanError:
        """The error for a search that found no pipeline."""
        tried = bool(self.tried or self.trials.least)
        return refusal(self.trials.least, self.limit, self.machine.name, tried=tried)
