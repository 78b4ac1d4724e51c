# pyright: basic
"""Pipelines that fit by choices alone, with values of their stages on the host."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import optax
import pytest

from planner import plan
from planner.common.errors import PlanError
from planner.pipeline import unlimited
from planner.pipeline.stage_choices import StageChoices
from planner.pipeline.unlimited import Unlimited
from tests.planner.emit.pipelines import arguments, masked
from tests.planner.programs import linked, slow_machine

from .trained import assert_trains
from .unproved import without_proof

SGD = optax.sgd(0.1, momentum=0.9)
TIGHT, ROOMY = 408_000, (544_000, 680_000)  # bytes; no kind of recomputation fits in the first


@cache
def planned(memory_bytes: int, offload: str = "auto") -> Any:
    """Sixteen layers in two stages, of large activations and small parameters."""
    with without_proof():
        return plan(
            masked, *arguments(16, batch=4096), optimizer=SGD, has_aux=True, pipeline=2,
            microbatches=8, cluster=linked(slow_machine()), memory_bytes=memory_bytes,
            offload=offload, baselines=False, substitutions=False, schedules=("1f1b",),
        )  # fmt: skip


def test_a_pipeline_that_fits_only_with_values_on_the_host_is_found() -> None:
    with pytest.raises(PlanError, match="does not fit"):
        planned(TIGHT, "never")
    found = planned(TIGHT)
    assert max(stage.peak_bytes for stage in found.file.stages) <= TIGHT
    assert all(program.hosted for program in found.file.members)
    assert found.file.joined.lower_bound_s <= found.file.joined.step_s
    assert_trains(found, SGD, args=arguments(16, batch=4096))


@pytest.mark.parametrize("share", [1e-6, 1.0])
def test_no_choices_are_made_in_a_division_with_more_work(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What choices of its slowest stage take at least is known before."""
    seen, run, chosen = list[StageChoices](), StageChoices.run, Unlimited._chosen

    def noted_run(choices: StageChoices) -> Any:
        if not choices.fits:
            seen.append(choices)
        return run(choices)

    monkeypatch.setattr(StageChoices, "run", noted_run)
    monkeypatch.setattr(
        Unlimited,
        "_chosen",
        lambda one, count, stages, below_s: chosen(one, count, stages, share * below_s),
    )
    assert planned.__wrapped__(ROOMY[0]).file.joined.step_s > 0.0
    assert bool(seen) == (share == 1.0)


def test_a_stage_that_fits_in_no_way_ends_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, stages = list[StageChoices](), list[int]()
    monkeypatch.setattr(unlimited, "StageChoices", noted(seen))
    own = StageChoices._found
    monkeypatch.setattr(
        StageChoices, "_found", lambda one, s, stage: stages.append(s) or own(one, s, stage)
    )
    with pytest.raises(PlanError, match="does not fit"):
        planned.__wrapped__(TIGHT // 2)
    assert seen
    assert len(stages) == len(seen)  # of two


def noted(seen: list[StageChoices]) -> Any:
    """`StageChoices`, all of which are noted."""

    def made(*args: Any, **settings: Any) -> StageChoices:
        seen.append(StageChoices(*args, **settings))
        return seen[-1]

    return made


@pytest.mark.exhaustive
def test_more_memory_is_not_slower_than_what_only_the_host_makes_fit() -> None:
    steps = [planned(limit).file.joined.step_s for limit in (TIGHT, *ROOMY)]
    assert all(more <= less for less, more in pairwise(steps))
