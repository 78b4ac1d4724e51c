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

from ir import IRError

from ..files.program_plan import PaddedRow
from ..sharding.padding.candidates import Class, classes_of, padded_size, products
from ..sharding.padding.choose import MOST_ROUGH, WORTH
from ..sharding.padding.classified import Classified
from ..sharding.padding.edit import padded
from ..sharding.planned_program import PlannedProgram
from .stage_trial import EditedStage, StageTrial


def padded_stage(stage: EditedStage, trial: StageTrial) -> EditedStage:
    """The stage with dimensions padded, or as it is if that is not slower by `WORTH`.

    Args:
        stage: as it was planned.
        trial: plans it with others.
    """
    left = _not_split(stage.plan) if trial.search.options.padding else set[int]()
    if not left:
        return stage
    trial.search.request.say("padding")
    best = stage
    for one in _candidates(Classified(stage.traced.graph), left)[:MOST_ROUGH]:
        known = Classified(best.traced.graph)
        here = next((c for c in classes_of(known) if (c.at, c.size) == (one.at, one.size)), None)
        size = None if here is None else padded_size(here.size, trial.devices)
        if here is None or size is None:
            continue
        row = PaddedRow(*here.at, here.size, size)
        edits = replace(best.edits, padded=(*best.edits.padded, row))
        try:
            program = padded(best.traced.program, here.padding(size), known)
        except IRError:
            continue
        found = trial.planned(replace(best.traced, program=program), edits)
        if found is not None and trial.seconds(found) < trial.seconds(best) * (1 - WORTH):
            best = found
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
