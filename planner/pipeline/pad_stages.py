"""Padding in the stages of a pipeline: each stage's micro-batch, forward and backward pass.

Stages are padded after the loss was differentiated and cut, as they are rewritten, and before that.
Where products of a stage are not split over all of its devices because a size does not divide, the
stage is planned with that dimension padded, and the plan is kept if it is faster. Dimensions that
differ by borders are not padded: the shifts that these become are not read again when the padded
micro-batch becomes the loop of a training step.
"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from ir import IRError, check
from ir.trace import Traced

from ..common.errors import PlanError
from ..files.program_plan import PaddedRow
from ..sharding.padding.candidates import Class, classes_of, padded_size, products
from ..sharding.padding.choose import MOST_ROUGH, WORTH
from ..sharding.padding.classified import Classified
from ..sharding.padding.edit import padded
from ..sharding.planned_program import PlannedProgram
from .cut.replaced import traced_joint, with_program
from .cut.stage_training_step import StageTrainingStep, training_step_of
from .divide.simulated import ranked
from .divide.stage_price import StagePrice
from .search import PipelineSearch
from .trials import PlannedPipeline

Better = tuple[PlannedProgram, StagePrice, tuple[PaddedRow, ...]]


def padded_pipeline(found: PlannedPipeline, search: PipelineSearch) -> PlannedPipeline:
    """Pads dimensions in the stages of a pipeline where that makes the step faster.

    Args:
        found: the pipeline with planned stages.
        search: the search that found it.
    """
    options = search.options
    if not options.padding or options.baseline is not None:
        return found
    plans, prices = list(found.plans), list(found.prices)
    rows: list[tuple[PaddedRow, ...]] = [()] * len(plans)
    known: dict[int, Better | None] = {}
    for s, plan in enumerate(found.plans):
        if id(plan) not in known:
            alike = [k for k, other in enumerate(found.plans) if other is plan]
            flight = max(found.flight[k] for k in alike)
            known[id(plan)] = _padded(found, s, flight, search)
        better = known[id(plan)]
        if better is not None:
            plans[s], prices[s], rows[s] = better
    if not any(rows):
        return found
    best = ranked(
        found.ranked.shape, prices, found.across, search.machine, search.limit, options.schedules
    )[0]
    if best.step_s >= found.ranked.step_s * (1 - WORTH) or best.worst_bytes > search.limit:
        return found
    bound = replace(found.bound, padded=tuple(rows))
    return replace(found, ranked=best, bound=bound, plans=tuple(plans), prices=tuple(prices))


def _padded(found: PlannedPipeline, s: int, flight: int, search: PipelineSearch) -> Better | None:
    """A stage padded and planned, with its price and rows; None if that is not faster."""
    shape, stage, devices = found.ranked.shape, found.bound.stages[s], found.ranked.shape.sizes[s]
    left = _not_split(found.plans[s])
    if not left:
        return None
    search.request.say("padding")

    def seconds(price: StagePrice) -> float:
        return price.microbatch_s + price.once_s / shape.microbatches

    traced = traced_joint(stage.joint)
    best: Better | None = None
    least_s = seconds(found.prices[s])
    for one in _candidates(Classified(traced.graph), left)[:MOST_ROUGH]:
        known = Classified(traced.graph)
        here = next((c for c in classes_of(known) if (c.at, c.size) == (one.at, one.size)), None)
        size = None if here is None else padded_size(here.size, devices)
        if here is None or size is None:
            continue
        variant = replace(traced, program=padded(traced.program, here.padding(size), known))
        try:
            check(variant.graph, after="padding")
            other = _with(stage, found, variant)
            plan, price = search.planner.planned(other, shape, s, flight)
        except (IRError, PlanError):
            continue
        if seconds(price) < least_s * (1 - WORTH):
            row = PaddedRow(*here.at, here.size, size)
            rows = (*(best[2] if best else ()), row)
            file = msgspec.structs.replace(plan.program, padded=rows)
            best, least_s, traced = (
                (replace(plan, program=file), price, rows),
                seconds(price),
                variant,
            )
    return best


def _not_split(plan: PlannedProgram) -> set[int]:
    """Sizes of the classes of products that some axis of a stage's mesh does not split."""
    devices = math.prod(size for _, size in plan.program.mesh)
    roles = {row.place: row.roles for row in plan.program.ops}
    known = Classified(plan.traced.graph)
    able = {one.number: one.size for one in classes_of(known)}
    found = set[int]()
    for i, classes in products(known):
        of = roles.get(known.flat.ops[i].place, ())
        if not all(of):
            found |= {able[c] for c in classes & able.keys() if padded_size(able[c], devices)}
    return found


def _candidates(known: Classified, sizes: set[int]) -> list[Class]:
    """Classes of products that have one of some sizes, those in most products first."""
    counts: dict[int, int] = {}
    for _, classes in products(known):
        for c in classes:
            counts[c] = counts.get(c, 0) + 1
    able = [one for one in classes_of(known) if one.size in sizes and one.number in counts]
    return sorted(able, key=lambda one: (-counts[one.number], one.at))


def _with(stage: StageTrainingStep, found: PlannedPipeline, after: Traced) -> StageTrainingStep:
    """The stage's step with its micro-batch padded."""
    joint, bound = with_program(stage.joint, after), found.bound
    return training_step_of(joint, bound.loss.microbatches, bound.optimizer)
