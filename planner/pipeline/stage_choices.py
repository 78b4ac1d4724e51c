"""What the stages of a pipeline compute again, chosen value by value as in one program.

A stage's micro-batch, forward and backward pass, is a program: the choices of one program (minimum
cuts, and choices with a name) are made in it, and those of the least work that fit are planned. The
stage keeps its kind of recomputation, one for all of its layers, where no choice is faster.

Prices do not know that XLA makes light values of one body again on its own, in the kernels that
read them; what a choice saves by not keeping such values is predicted too high.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from ir import IRError, check, digest
from ir.trace import Traced

from ..sharding.plan_traced import program_for
from ..sharding.planned_program import PlannedProgram
from ..sharding.recompute.choices import choices
from ..sharding.recompute.frontier import SecondsOf, work_s
from ..sharding.recompute.node_seconds import node_seconds
from ..sharding.recompute.saved import layers_of
from ..sharding.recompute.variants import Rows, kept_by, variant_of
from .bound_stages import BoundStages
from .cut.opened_loss import cut_of
from .cut.replaced import late_inputs, traced_joint, with_program
from .cut.stage_gradient import Joint
from .cut.stage_training_step import StageTrainingStep, training_step_of
from .divide.simulated import ranked
from .divide.stage_price import StagePrice
from .stage_edits import StageEdits
from .stage_planner import StageFound
from .trials import PlannedPipeline, Trials

CHOSEN = "chosen"  # the kind of recomputation of a stage with a choice
MOST_PLANS = 3  # of choices of a stage; not measured
Named = tuple[StageTrainingStep, str]  # with the digest of its program


@dataclass(frozen=True)
class Choice:
    """A choice in a stage.

    rows: what is computed again.
    is_written: whether that is the stage as the program is written.
    stage: the stage with it, and the digest of its program.
    """

    rows: Rows
    is_written: bool
    stage: Named


@dataclass(frozen=True)
class Better:
    """A stage with a choice that makes it faster."""

    choice: Choice
    found: StageFound


@dataclass
class _Ordered:
    """Choices of a stage, made as training steps as far as they are read.

    rest: those that were not read yet.
    """

    rest: Iterator[Choice]
    made: list[Choice] = field(default_factory=list[Choice])

    def __iter__(self) -> Iterator[Choice]:
        yield from self.made
        for one in self.rest:
            self.made.append(one)
            yield one


@dataclass
class StageChoices:
    """Looks for choices in the stages of a pipeline.

    choices: of a stage that keeps everything, by its name and devices, those of the least work
        first.
    """

    trials: Trials
    pipeline: PlannedPipeline
    choices: dict[tuple[str, int], _Ordered] = field(
        default_factory=dict[tuple[str, int], "_Ordered"]
    )

    def __post_init__(self) -> None:
        self.planner, ranked = self.trials.planner, self.pipeline.ranked
        self.loss, self.shape = self.pipeline.bound.loss, ranked.shape
        self.kept = cut_of(self.loss, self.shape.cuts)
        self.chosen = replace(self.shape, recompute=(CHOSEN,) * len(self.shape.sizes))

    def run(self) -> PlannedPipeline:
        """The pipeline with each stage's fastest choice; unchanged if its step is no shorter."""
        before, count = self.pipeline, len(self.shape.sizes)
        known: dict[tuple[int, str], Better | None] = {}
        found: dict[int, Better] = {}
        for s in sorted(range(count), key=lambda s: -before.flight[s]):
            own = self.planner.training_step(self.loss, self.kept, s)
            first = self.planner.alike.first(self.loss, self.kept, s, own)
            key = id(before.plans[s]), first[1]
            if key not in known:
                known[key] = self._better(s, first)
            better = known[key]
            if better is not None:
                found[s] = better if first is own else self._moved(better, own)
        return self._with(found) if found else before

    def _better(self, s: int, stage: Named) -> Better | None:
        """The fastest choice of a stage of those planned; of equal ones that of the least memory.

        None if none is faster than the stage is.
        """
        key = stage[1], self.shape.sizes[s]
        if key not in self.choices:
            self.planner.say("what stages compute again")
            self.choices[key] = _Ordered(self._choices(stage[0], key[1]))
        flight = self.pipeline.flight[s]
        kind, best = self.shape.recompute[s], None
        price = self.pipeline.prices[s]
        least, again_s = (self._seconds(price, kind), 0.0), price.paced_s(kind) - price.microbatch_s
        # a step hides what its shares by phase do not
        below_s = self.pipeline.plans[s].step_s + self.shape.microbatches * again_s
        room = self.planner.limit_bytes / self.shape.turns.chunks
        others = (one for one in self.choices[key] if kind != "none" or not one.is_written)
        for choice in islice(others, MOST_PLANS):
            answer = self.planner.planned_below(choice.stage[0], self.chosen, s, flight, below_s)
            if answer is None:
                continue
            rank = self._seconds(answer[1]), answer[1].needed_bytes(CHOSEN, flight)
            if rank < least and rank[1] <= room:
                best, least = Better(choice, answer), rank
        return best

    def _seconds(self, price: StagePrice, kind: str = CHOSEN) -> float:
        """Seconds of a micro-batch, with its share of what a step has once."""
        return price.paced_s(kind) + price.once_s / self.shape.microbatches

    def _choices(self, stage: StageTrainingStep, size: int) -> Iterator[Choice]:
        """The choices of a stage that make distinct programs, those of the least work first."""
        traced = traced_joint(stage.joint)
        late = late_inputs(stage.joint, traced)
        kept = kept_by(traced, late)
        layers = layers_of(kept.program, late)
        if not any(node.read for layer in layers for node in layer.nodes):
            return
        seen, found = set[str](), list[tuple[float, int, Traced, Rows]]()
        written = digest(traced.graph)
        for n, values in enumerate(choices(layers, self._seconds_of(kept, size))):
            variant = variant_of(kept, values, late)
            key = digest(variant.traced.graph)
            if key not in seen:
                seen.add(key)
                work = work_s(variant.traced, self._seconds_of(variant.traced, size))
                found.append((work, n, variant.traced, variant.rows or ()))
        for _, _, again, rows in sorted(found, key=lambda one: one[:2]):
            is_written = digest(again.graph) == written
            made = self._made(stage.joint, again, rows, is_written=is_written)
            if made is not None:
                yield made

    def _seconds_of(self, traced: Traced, size: int) -> SecondsOf:
        machine = self.planner.machine.subset(size)
        options = replace(self.planner.options, pins=(), forbidden=())
        return node_seconds(program_for(traced, options, machine).facts, machine)

    def _made(
        self, joint: Joint, traced: Traced, rows: Rows, *, is_written: bool = False
    ) -> Choice | None:
        """A choice as a training step; None if it cannot be one."""
        try:
            check(traced.graph, after="choosing what a stage computes again")
            made = with_program(joint, traced)
            step = training_step_of(made, self.loss.microbatches, self.planner.training.optimizer)
        except IRError:
            return None
        return Choice(rows, is_written, (step, digest(step.traced.graph)))

    def _moved(self, better: Better, own: Named) -> Better:
        """What is chosen in a stage, in another that is alike."""
        joint, rows = own[0].joint, better.choice.rows
        choice = self._made(joint, StageEdits(rows).applied(joint, "a stage"), rows)
        assert choice is not None
        plan, price = better.found
        return Better(choice, (self.planner.alike.planned(plan, choice.stage), price))

    def _with(self, found: dict[int, Better]) -> PlannedPipeline:
        """The pipeline with choices, by stage; unchanged if its step is no shorter."""
        before, count = self.pipeline, range(len(self.shape.sizes))
        kinds = tuple(CHOSEN if s in found else self.shape.recompute[s] for s in count)
        edits = tuple(
            StageEdits(found[s].choice.rows) if s in found else StageEdits() for s in count
        )
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
        return before if after is None or after.ranked.step_s >= before.ranked.step_s else after


def with_choices(best: PlannedPipeline, trials: Trials) -> PlannedPipeline:
    """The pipeline with a choice of what each of its stages computes again, where that is faster.

    Args:
        best: the pipeline.
        trials: the search that found it.
    """
    options = trials.planner.options
    if options.recompute != "auto" or options.baseline is not None:
        return best
    return StageChoices(trials, best).run()


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
