# pyright: basic
"""Rewrites in the stages of a pipeline: each stage's micro-batch, forward and backward pass.

Stages are rewritten after the loss was differentiated and cut, so that custom derivatives are kept,
and before their programs are split into forward and backward parts. What a rule computes of weights
alone is computed in every micro-batch.
"""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec

from costmodel import CollectiveModel, ComputeModel
from ir import IRError, check, digest
from substitutions import Draft, Trial, draft_of

from ..common.errors import PlanError
from ..files.program_plan import SubstitutionRow
from ..sharding.planned_program import PlannedProgram
from ..sharding.rewrite.estimate import Estimator
from ..sharding.rewrite.retrace import retraced
from ..sharding.rewrite.search import MOST_SAVED, WORTH, RewriteBudget, RewriteSearch
from ..sharding.rewrite.searched_rules import rules_for
from .cut.replaced import traced_joint, with_program
from .cut.stage_training_step import StageTrainingStep, training_step_of
from .divide.simulated import ranked
from .divide.stage_price import StagePrice
from .search import PipelineSearch
from .stage_edits import StageEdits
from .trials import PlannedPipeline, least_s

BUDGET = RewriteBudget(missed=1)  # for one stage; each price is a plan of the stage


def rewritten_pipeline(
    found: PlannedPipeline, search: PipelineSearch
) -> tuple[PlannedPipeline, float, tuple[str, ...]]:
    """Rewrites the stages of a pipeline where that makes the step faster.

    Args:
        found: the pipeline with planned stages.
        search: the search that found it.

    Returns:
        The pipeline, seconds spent, and warnings of rewrites that were not made.
    """
    options, begun = search.options, time.monotonic()
    if not options.substitutions or options.baseline is not None:
        return found, 0.0, ()
    search.request.say("substitute")
    trial = Trial()
    plans, prices, shape = list(found.plans), list(found.prices), found.ranked.shape
    rows: list[tuple[SubstitutionRow, ...]] = [()] * len(plans)
    paced = [p.paced_s(kind) for p, kind in zip(prices, shape.recompute, strict=True)]
    first = {id(plan): k for k, plan in reversed([*enumerate(found.plans)])}
    of = [first[id(plan)] for plan in found.plans]  # the first stage with the same plan
    left = set(of)
    while left:
        hoped = [t * (1 - MOST_SAVED * (k in left)) for t, k in zip(paced, of, strict=True)]
        if least_s(hoped, shape.microbatches) > (1 - WORTH) * least_s(paced, shape.microbatches):
            break  # a slower stage sets the pace
        s = max(left, key=lambda k: (paced[k], -k))
        left.remove(s)
        members = [k for k, other in enumerate(of) if other == s]
        better = _rewritten(found, s, max(found.flight[k] for k in members), search, trial)
        if better is not None:
            for k in members:
                plans[k], prices[k], rows[k] = better
                paced[k] = prices[k].paced_s(shape.recompute[k])
    if any(rows):
        order = ranked(
            found.ranked.shape, prices, found.across, search.machine, search.limit,
            options.schedules,
        )  # fmt: skip
        best = order[0]
        pays = best.step_s < found.ranked.step_s * (1 - WORTH)
        if pays and best.worst_bytes <= search.limit:
            bound = replace(found.bound, rows=tuple(rows))
            found = replace(
                found, ranked=best, bound=bound, plans=tuple(plans), prices=tuple(prices)
            )
    return found, time.monotonic() - begun, trial.warnings()


def _rewritten(
    found: PlannedPipeline, s: int, flight: int, search: PipelineSearch, trial: Trial
) -> tuple[PlannedProgram, StagePrice, tuple[SubstitutionRow, ...]] | None:
    """A stage rewritten and planned, with its price and rules; None if no rewrite is faster."""
    shape, stage = found.ranked.shape, found.bound.stages[s]
    traced = traced_joint(stage.joint)
    known: dict[str, tuple[PlannedProgram, StagePrice]] = {}

    def seconds(price: StagePrice) -> float:
        return price.microbatch_s + price.once_s / shape.microbatches

    def price(draft: Draft) -> float:
        try:
            check(draft.graph, after="rewriting")
            other = _with(stage, found, draft)
            known[digest(draft.graph)] = search.planner.planned(other, shape, s, flight)
        except (IRError, PlanError):
            return float("inf")
        return seconds(known[digest(draft.graph)][1])

    cluster = search.machine.subset(shape.sizes[s])
    estimator = Estimator(cluster, ComputeModel(cluster), CollectiveModel(cluster))
    rewrite_search = RewriteSearch(
        price, estimator, seconds(found.prices[s]), BUDGET,
        rules=rules_for(search.options.substitutions), trial=trial,
    )  # fmt: skip
    better = rewrite_search.run(draft_of(traced.graph))
    if better is None:
        return None
    plan, cost = known[digest(better.draft.graph)]
    rows = tuple(SubstitutionRow(step.rule, step.place, step.count) for step in better.steps)
    file = msgspec.structs.replace(
        StageEdits.of(found.plans[s].program).noted(plan.program),
        substitutions=rows,
        traced_digest=digest(traced.graph),
    )
    return replace(plan, program=file), cost, rows


def _with(stage: StageTrainingStep, found: PlannedPipeline, draft: Draft) -> StageTrainingStep:
    """The stage's step with its micro-batch rewritten."""
    after = retraced(traced_joint(stage.joint), draft)
    bound = found.bound
    return training_step_of(
        with_program(stage.joint, after), bound.loss.microbatches, bound.optimizer
    )
