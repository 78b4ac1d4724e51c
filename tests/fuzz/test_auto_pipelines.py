# pyright: basic
"""Random training steps that `pipeline="auto"` plans, against the steps as they are written."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fuzz.auto_pipelines import tried_in_stages
from benchmarks.fuzz.training import difference_of
from tests.planner.pipeline.unproved import without_proof


def test_a_value_that_overflows_does_not_excuse_the_others() -> None:
    expected = np.array([np.inf, 1.0, np.nan], np.float32)
    assert not difference_of(expected, expected)
    assert difference_of(np.array([np.inf, 2.0, np.nan], np.float32), expected)
    assert difference_of(np.array([np.nan, 1.0, np.nan], np.float32), expected)


@without_proof()
@pytest.mark.slow
def test_a_random_step_in_stages_is_the_step_as_written() -> None:
    found = tried_in_stages(7)
    assert not found.wrong
    assert found.what.startswith("4 stages")


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, 500, 10))
def test_random_steps_planned_with_stages_are_the_steps_as_written(first: int) -> None:
    wrong = [tried_in_stages(seed).wrong for seed in range(first, first + 10)]
    assert not any(wrong), [one for one in wrong if one]
