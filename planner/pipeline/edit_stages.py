"""Edits in the stages of a pipeline: each stage's micro-batch, forward and backward pass.

Stages are edited after the loss was differentiated and cut, as they are rewritten, and before that:
dimensions are padded, rows of experts sorted in blocks, causal sequences put into zigzag. An edited
stage is kept where its plan is faster, and the edited stages where the pipeline is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..sharding.padding.choose import WORTH
from .block_stages import blocked_stage
from .divide.simulated import ranked
from .order_stages import ordered_stage
from .pad_stages import padded_stage
from .search import PipelineSearch
from .stage_edits import StageEdits
from .stage_trial import EditedStage, StageTrial
from .trials import PlannedPipeline

_EDITS = (padded_stage, blocked_stage, ordered_stage)


def edited_pipeline(found: PlannedPipeline, search: PipelineSearch) -> PlannedPipeline:
    """Edits the stages of a pipeline where that makes the step faster.

    Args:
        found: the pipeline with planned stages.
        search: the search that found it.
    """
    if search.options.baseline is not None:
        return found
    known: dict[int, EditedStage] = {}
    for s, plan in enumerate(found.plans):
        if id(plan) not in known:
            alike = [k for k, other in enumerate(found.plans) if other is plan]
            trial = StageTrial(found, search, s, max(found.flight[k] for k in alike))
            stage = trial.unedited()
            for edit in _EDITS:
                stage = edit(stage, trial)
            known[id(plan)] = stage
    stages = [known[id(plan)] for plan in found.plans]
    edits = tuple(stage.edits for stage in stages)
    if edits == (found.bound.edits or (StageEdits(),) * len(stages)):
        return found
    plans, prices = (tuple(each) for each in zip(*((s.plan, s.price) for s in stages), strict=True))
    best = ranked(
        found.ranked.shape, prices, found.across, search.machine, search.limit,
        search.options.schedules,
    )[0]  # fmt: skip
    if best.worst_bytes > search.limit or not _pays(best.step_s, found, edits):
        return found
    bound = replace(found.bound, edits=edits)
    return replace(found, ranked=best, bound=bound, plans=plans, prices=prices)


def _pays(step_s: float, before: PlannedPipeline, edits: Sequence[StageEdits]) -> bool:
    """Whether a pipeline with edited stages is kept; padding alone has a least saving."""
    olds = [StageEdits.of(plan.program) for plan in before.plans]
    pairs = zip(edits, olds, strict=True)
    padded_alone = all(replace(edit, padded=old.padded) == old for edit, old in pairs)
    return step_s < before.ranked.step_s * (1 - WORTH * padded_alone)
