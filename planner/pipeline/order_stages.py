"""Causal sequences in the order of zigzag in the stages of a pipeline.

A stage takes and gives its activations in the order of the program; inside it they are in zigzag.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ir import ATTENTION
from ir.analysis import flatten

from ..sharding.ordering.plan import ALONG, row_of
from ..sharding.ordering.rows import as_ordered
from ..sharding.planned_program import PlannedProgram
from .stage_trial import EditedStage, StageTrial


def ordered_stage(stage: EditedStage, trial: StageTrial) -> EditedStage:
    """The stage with its causal sequence in zigzag, or as it is if that is not slower.

    Args:
        stage: with its edits so far.
        trial: plans it with others.
    """
    if not trial.search.options.sequence_order:
        return stage
    parts = _parts(stage.plan)
    if parts < 2:
        return stage
    places = {op.place: parts for op in flatten(stage.traced.graph).ops}
    row = row_of(stage.traced, places)
    if row is None:
        return stage
    trial.search.request.say("sequences in zigzag")
    traced = as_ordered(stage.traced, (row,), f"stage {trial.number}")
    found = trial.planned(traced, replace(stage.edits, ordered=(row,)))
    return found if found is not None and _is_faster(found, stage, trial) else stage


def _is_faster(found: EditedStage, before: EditedStage, trial: StageTrial) -> bool:
    return trial.seconds(found) < trial.seconds(before)


def _parts(plan: PlannedProgram) -> int:
    """Over how many devices a stage's plan splits the queries of its kernels."""
    sizes = [size for _, size in plan.program.mesh]
    roles = {row.place: row.roles for row in plan.program.ops}
    kernels = [op for op in flatten(plan.traced.graph).ops if op.node.op in ATTENTION]
    each = (zip(sizes, roles.get(op.place, ()), strict=False) for op in kernels)
    return max((math.prod(n for n, role in pairs if role in ALONG) for pairs in each), default=1)
