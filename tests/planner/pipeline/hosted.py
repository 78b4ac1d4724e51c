# pyright: basic
"""Stages of a pipeline with random choices: kept, computed again, or on the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.pipeline.cut.replaced import late_inputs, traced_joint, with_program
from planner.pipeline.cut.stage_gradient import Joint
from planner.pipeline.stage_edits import StageEdits
from planner.sharding.recompute.choices import recomputable
from planner.sharding.recompute.hosted import stacked_values
from planner.sharding.recompute.saved import layers_of
from planner.sharding.recompute.variants import kept_by, rows_of, variant_of


def with_edits(joint: Joint, edits: StageEdits) -> Joint:
    """The stage with the edits of a plan file."""
    return with_program(joint, edits.applied(joint, "a stage"))


def random_choices(seed: int) -> Callable[[Joint, int], Joint]:
    """Edits a stage at random, given its number; at least one of its stacks goes to the host."""

    def edited(joint: Joint, number: int) -> Joint:
        rng = np.random.default_rng((seed, number))
        traced = traced_joint(joint)
        late = late_inputs(joint, traced)
        kept = kept_by(traced, late)
        each = recomputable(layers_of(kept.program, late))
        again = frozenset().union(*(keys for keys in each if rng.random() < 0.4))
        variant = variant_of(kept, again, late)
        stacks = [one.key for one in stacked_values(variant.traced.program)]
        away = [key for key in stacks if rng.random() < 0.5] or stacks[:1]
        return with_edits(joint, StageEdits(variant.rows, rows_of(away)))

    return edited
