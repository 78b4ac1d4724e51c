"""What the stages of a pipeline keep, compute again or send to the host, chosen value by value.

A stage's micro-batch, forward and backward pass, is a program: the choices of one program (minimum
cuts, and choices with a name) are made in it, and those of the least work that fit are planned.
Where memory binds, so are choices that have values wait in the memory of the host: stacks of its
loops, and those of layers that are written out. The stage keeps its kind of recomputation, one for
all of its layers, where no choice is faster.

Prices do not know that XLA makes light values of one body again on its own, in the kernels that
read them; what a choice saves by not keeping such values is predicted too high.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from ..sharding.planned_program import PlannedProgram
from ..sharding.recompute.choose import SPARE
from ..sharding.search.asked import may_offload
from .alike_stages import NamedStage
from .bound_stages import BoundStages
from .cut.opened_loss import cut_of
from .divide.simulated import ranked
from .divide.stage_price import StagePrice
from .stage_edits import StageEdits
from .stage_hosts import HostedWay, fewer_here, fewest_moved
from .stage_works import Choice, StageWork
from .stages_together import CHOSEN, AllStages, PlannedChoice, seconds_of
from .trials import PlannedPipeline, Trials

MOST_PLANS = 3  # choices planned for a stage, nothing on the host; steps of 1 to 6 are 0.2 % apart
# Choices with values on the host that are planned for a stage until one fits, and how much longer
# than the stage without a choice one may take. The first 16 layers of Llama-3 8B in four stages on
# 8 A100 with 19 GB take 3.341 s a step with 3, 5 and 8, and with 0.1 and 0.4; 3.350 with 0.
MOST_HOSTED, SLOWER = 5, 0.1


@dataclass
class StageChoices:
    """Looks for choices in the stages of a pipeline.

    fits: whether the pipeline fits as it is; else it was planned without a limit of memory, and
        choices are to make it fit, however long they take.
    """

    trials: Trials
    pipeline: PlannedPipeline
    fits: bool = True

    def __post_init__(self) -> None:
        self.planner, ranked = self.trials.planner, self.pipeline.ranked
        self.loss, self.shape = self.pipeline.bound.loss, ranked.shape
        self.kept = cut_of(self.loss, self.shape.cuts)
        self.chosen = replace(self.shape, recompute=(CHOSEN,) * len(self.shape.sizes))
        self.room_bytes = self.planner.limit_bytes / self.shape.turns.chunks
        self.all = AllStages(self.pipeline, self.planner.machine, self.planner.limit_bytes)
        self.offloads = may_offload(self.planner.options, self.planner.machine)

    def run(self) -> PlannedPipeline | None:
        """The pipeline with each stage's fastest choice; unchanged if its step is no shorter.

        None if it does not fit as it is, nor with choices.
        """
        before, count = self.pipeline, len(self.shape.sizes)
        known: dict[tuple[int, str], tuple[PlannedChoice | None, list[PlannedChoice]]] = {}
        names: dict[int, tuple[NamedStage, NamedStage]] = {}
        kept: dict[int, PlannedChoice] = {}
        hosted: dict[int, list[PlannedChoice]] = {}
        for s in sorted(range(count), key=lambda s: -before.flight[s]):
            names[s] = self._named(s)
            first = names[s][1]
            key = id(before.plans[s]), first[1]
            if key not in known:
                known[key] = self._found(s, first)
            here, hosted[s] = known[key]
            if not self.fits and here is None and not hosted[s] and not self._has_room(s):
                return None
            if here is not None:
                kept[s] = here
        ways = [before] if self.fits else []
        chosen = (kept, self.all.together(kept, hosted)) if kept or any(hosted.values()) else ()
        for found in chosen:
            moved = {
                s: one if names[s][0] is names[s][1] else self._moved(one, names[s][0])
                for s, one in found.items()
            }
            if (way := self._with(moved)) is not before:
                ways.append(way)
        return min(ways, key=lambda one: one.ranked.step_s, default=None)

    def _as_is(self, s: int) -> tuple[str, StagePrice]:
        return self.shape.recompute[s], self.pipeline.prices[s]

    def may_be_below(self, step_s: float) -> bool:
        """Whether the stage that takes longest may take less than a step, by the work of choices.

        With a choice it may be faster than with everything kept, which takes time to store.
        """
        if self.pipeline.ranked.step_s < step_s:
            return True
        count = self.shape.microbatches
        paced = [
            price.paced_s(kind) for kind, price in map(self._as_is, range(len(self.kept.stages)))
        ]
        s = max(range(len(paced)), key=lambda s: paced[s])
        works = self._of(s, self._named(s)[1]).works
        return count * min((work.work_s for work in works), default=math.inf) < step_s

    def _named(self, s: int) -> tuple[NamedStage, NamedStage]:
        """A stage, and the first of all that are alike."""
        own = self.planner.training_step(self.loss, self.kept, s)
        return own, self.planner.alike.first(self.loss, self.kept, s, own)

    def _has_room(self, s: int) -> bool:
        """Whether a stage fits without a choice."""
        kind, price = self._as_is(s)
        return price.needed_bytes(kind, self.pipeline.flight[s]) <= self.room_bytes

    def _found(self, s: int, stage: NamedStage) -> tuple[PlannedChoice | None, list[PlannedChoice]]:
        """The fastest choice of a stage with nothing on the host, and some with values there.

        The first is the fastest of those planned, of equal ones that of the least memory; None if
        none is faster than the stage is.
        """
        kept = self._kept(s, stage)
        if not self.offloads or not self._is_short(s, stage, kept):
            return kept, []
        self.planner.say("what stages send to the host")
        return kept, self._with_hosts(s, stage)

    def _kept(self, s: int, stage: NamedStage) -> PlannedChoice | None:
        """The same of the choices that keep everything else on the devices."""
        kind, known = self.shape.recompute[s], self._of(s, stage)
        return self._fastest(s, (c for c in known.kept if kind != "none" or not c.is_written))

    def _of(self, s: int, stage: NamedStage) -> StageWork:
        return self.trials.works.of(stage, self.shape.microbatches, self.shape.sizes[s])

    def _fastest(self, s: int, some: Iterable[Choice]) -> PlannedChoice | None:
        """The fastest of the first choices, if it is faster than the stage is."""
        flight, below_s = self.pipeline.flight[s], self._below_s(s)
        kind, price = self._as_is(s)
        as_is_s = seconds_of(price, kind, self.shape.microbatches) if self.fits else math.inf
        best, least = None, (as_is_s, 0.0)
        for choice in islice(some, MOST_PLANS):
            answer = self.planner.planned_below(choice.stage[0], self.chosen, s, flight, below_s)
            if answer is None:
                continue
            rank = (
                seconds_of(answer[1], CHOSEN, self.shape.microbatches),
                answer[1].needed_bytes(CHOSEN, flight),
            )
            if rank < least and rank[1] <= self.room_bytes:
                best, least = PlannedChoice(choice, answer), rank
        return best

    def _below_s(self, s: int) -> float:
        """Seconds that a stage takes in a step without a choice, infinite if it does not fit so.

        They are those of its plan: in a whole step more communication is hidden than in its forward
        and backward pass each.
        """
        if not self.fits:
            return math.inf
        kind, price = self._as_is(s)
        again_s = price.paced_s(kind) - price.microbatch_s
        return self.pipeline.plans[s].step_s + self.shape.microbatches * again_s

    def _is_short(self, s: int, stage: NamedStage, best: PlannedChoice | None) -> bool:
        """Whether a limit of memory may make a stage slower than one that computes nothing again.

        It does not where the choice of the least work leaves memory free.
        """
        kind, price, known = self.shape.recompute[s], self.pipeline.prices[s], self._of(s, stage)
        if not known.works:
            return False
        rows = known.works[0].variant.rows
        least = kind == "none"
        if best is not None:
            kind, price, least = CHOSEN, best.found[1], best.choice.edits.recomputed == rows
        return not least or (
            price.needed_bytes(kind, self.pipeline.flight[s]) > SPARE * self.room_bytes
        )

    def _with_hosts(self, s: int, stage: NamedStage) -> list[PlannedChoice]:
        """Choices with values on the host that fit.

        Of ways that take longer each has less on the devices, so that the fastest that fits is
        found by bisection; then that which moves less, as far as it left room. Slower ones than the
        stage is may make room for what earlier stages send.
        """
        found, every = dict[int, PlannedChoice](), self._ways(s, stage)
        ways = fewer_here(every)
        low, high, at = 0, len(ways), 0
        for _ in range(MOST_HOSTED):
            if low >= high:
                break
            one = self._planned(s, stage, ways[at])
            if one is not None:
                found[at] = one
            low, high = (at + 1, high) if one is None else (low, at)
            at = (low + high) // 2
        if not found:
            return []
        some, best = [*found.values()], ways[min(found)]
        needed = some[-1].found[1].needed_bytes(CHOSEN, self.pipeline.flight[s])
        room = self.shape.sizes[s] * max(self.room_bytes - needed, 0.0)
        if (fewest := fewest_moved(every, best, room)) is not best:
            one = self._planned(s, stage, fewest)
            some += [] if one is None else [one]
        return some

    def _planned(self, s: int, stage: NamedStage, way: HostedWay) -> PlannedChoice | None:
        """A way to have values on the host, None if it does not fit or takes far longer."""
        choice = self._of(s, stage).hosted(way)
        if choice is None:
            return None
        flight, below_s = self.pipeline.flight[s], self._below_s(s) * (1 + SLOWER)
        answer = self.planner.planned_below(choice.stage[0], self.chosen, s, flight, below_s)
        one = None if answer is None else PlannedChoice(choice, answer)
        return one if one is not None and self.all.fits(s, one) else None

    def _ways(self, s: int, stage: NamedStage) -> list[HostedWay]:
        """Ways to have values on the host that may fit and help, the least seconds first."""
        size, work = self.shape.sizes[s], self._of(s, stage)
        below_s = self._below_s(s) * (1 + SLOWER) / self.shape.microbatches
        return [
            way for way in work.ways(self.pipeline.flight[s])
            if way.least_s < below_s and work.held_bytes + way.here_bytes <= size * self.room_bytes
        ]  # fmt: skip

    def _moved(self, better: PlannedChoice, own: NamedStage) -> PlannedChoice:
        """What is chosen in a stage, in another that is alike."""
        choice = self.trials.works.in_stage(better.choice, own, self.shape.microbatches)
        plan, price = better.found
        return PlannedChoice(choice, (self.planner.alike.planned(plan, choice.stage), price))

    def _with(self, found: dict[int, PlannedChoice]) -> PlannedPipeline:
        """The pipeline with choices, by stage; unchanged if its step is no shorter."""
        before, count = self.pipeline, range(len(self.shape.sizes))
        if not found:
            return before
        kinds = tuple(CHOSEN if s in found else self.shape.recompute[s] for s in count)
        edits = tuple(found[s].choice.edits if s in found else StageEdits() for s in count)
        plans, prices = [*before.plans], [*before.prices]
        noted: dict[int, PlannedProgram] = {}
        for s, better in found.items():
            plan, prices[s] = better.found
            if id(plan) not in noted:
                noted[id(plan)] = replace(plan, program=edits[s].noted(plan.program))
            plans[s] = noted[id(plan)]
        cut = cut_of(self.loss, self.shape.cuts, kinds)
        bound = BoundStages(self.loss, cut, before.bound.optimizer, edits=edits)
        shape = replace(self.shape, recompute=kinds)
        after = self.trials.ranked(bound, shape, plans, prices, before.across, before.flight)
        if after is None or (self.fits and after.ranked.step_s >= before.ranked.step_s):
            return before
        return after


def chooses(trials: Trials) -> bool:
    """Whether stages may choose value by value."""
    options = trials.planner.options
    return options.recompute == "auto" and options.baseline is None


def may_be_below(one: PlannedPipeline, trials: Trials, step_s: float) -> bool:
    """Whether choices of its stages may bring a pipeline below the step of another plan [s]."""
    return StageChoices(trials, one).may_be_below(step_s)


def with_choices(best: PlannedPipeline, trials: Trials) -> PlannedPipeline:
    """The pipeline with a choice of what each of its stages keeps, where that is faster.

    Args:
        best: the pipeline.
        trials: the search that found it.
    """
    found = StageChoices(trials, best).run() if chooses(trials) else None
    return found or best


def least_step_s(found: PlannedPipeline, trials: Trials) -> float:
    """Lower bound of the step of a pipeline whose stages compute again what they do [s].

    Each stage takes the bound of its plan; infinite if no stage has a choice.

    Args:
        found: the pipeline.
        trials: the search that found it.
    """
    shape = found.ranked.shape
    if CHOSEN not in shape.recompute:
        return math.inf
    pairs = zip(found.plans, found.prices, strict=True)
    least = [p.faster(min(plan.lower_bound_s / plan.step_s, 1.0)) for plan, p in pairs]
    options, machine = trials.planner.options, trials.planner.machine
    return ranked(shape, least, found.across, machine, math.inf, options.schedules)[0].step_s
