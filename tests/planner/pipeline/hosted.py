# pyright: basic
"""Stages of a pipeline with random choices: kept, computed again, or on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ir.trace import Program
from planner.pipeline.cut.replaced import late_inputs, traced_joint, with_program
from planner.pipeline.cut.stage_gradient import Joint
from planner.pipeline.stage_edits import StageEdits
from planner.sharding.recompute.choices import recomputable
from planner.sharding.recompute.draft import draft_of
from planner.sharding.recompute.hosted import stacked_values
from planner.sharding.recompute.hosted_written import may_be_hosted
from planner.sharding.recompute.saved import Key, layers_of
from planner.sharding.recompute.variants import kept_by, rows_of, variant_of


def with_edits(joint: Joint, edits: StageEdits) -> Joint:
    """The stage with the edits of a plan file."""
    return with_program(joint, edits.applied(joint, "a stage"))


def random_choices(seed: int, *, written: bool = False) -> Callable[[Joint, int], Joint]:
    """Edits a stage at random, given its number; something of it goes to the host.

    It is at least one of its stacks, or at least one value of layers that are `written` out.
    """

    def edited(joint: Joint, number: int) -> Joint:
        rng = np.random.default_rng((seed, number))
        traced = traced_joint(joint)
        late = late_inputs(joint, traced)
        kept = kept_by(traced, late)
        each = recomputable(layers_of(kept.program, late))
        again = frozenset().union(*(keys for keys in each if rng.random() < 0.4))
        variant = variant_of(kept, again, late)
        stacks = [one.key for one in stacked_values(variant.traced.program)]
        some = written_values(variant.traced.program, late) if written else stacks
        away = [key for key in some if rng.random() < 0.5] or some[:1]
        return with_edits(joint, StageEdits(variant.rows, rows_of(away)))

    return edited


def written_values(program: Program, late: Sequence[int]) -> list[Key]:
    """All values that no loop makes and the backward pass reads."""
    draft = draft_of(program, late=late)
    return [((), v) for v in sorted(may_be_hosted(draft, range(len(program.graph.types))))]
