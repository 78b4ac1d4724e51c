"""Rows of experts that are sorted within blocks in the stages of a pipeline."""

from __future__ import annotations

from dataclasses import replace

from ir import GROUPED
from ir.analysis import flatten

from ..sharding.sorted_rows.orders import Orders
from ..sharding.sorted_rows.plan import fastest_blocks
from ..sharding.sorted_rows.rows import blocked
from .stage_trial import EditedStage, StageTrial


def blocked_stage(stage: EditedStage, trial: StageTrial) -> EditedStage:
    """The stage with its rows sorted in blocks, or as it is if that is not slower.

    Args:
        stage: with its edits so far.
        trial: plans it with others.
    """
    options = trial.search.options
    if not options.sort_in_blocks or options.emission != "shard_map" or trial.devices < 2:
        return stage
    if all(op.node.op != GROUPED for op in flatten(stage.traced.graph).ops):
        return stage
    trial.search.request.say("rows in blocks")
    orders = Orders(stage.traced.graph)
    made: dict[int, EditedStage] = {1: stage}

    def step_s(blocks: int) -> float:
        traced = blocked(stage.traced, blocks, orders)
        edits = replace(stage.edits, sorted_blocks=blocks)
        found = None if traced is None else trial.planned(traced, edits)
        if found is not None:
            made[blocks] = found
        return float("inf") if found is None else trial.seconds(found)

    machine = trial.search.machine.subset(trial.devices)
    return made[fastest_blocks(machine, trial.seconds(stage), step_s)]
