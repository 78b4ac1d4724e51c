"""The list scheduler: valid for any placement, within memory, and 1F1B where that is best."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import PlanError
from planner.pipeline.schedule import bidirectional, chain, greedy, simulate, uniform
from tests.planner.pipeline.schedule.problems import random_problem


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), split=st.booleans())
def test_any_placement_runs_within_memory(seed: int, split: bool) -> None:
    placement, costs, microbatches = random_problem(seed)
    limit = np.zeros(placement.devices)
    np.add.at(limit, list(placement.device), np.array(costs.activation_bytes))
    limit = limit * (1 + seed % 3)
    schedule = greedy(placement, microbatches, costs, split=split, memory_bytes=limit.tolist())
    timeline = simulate(schedule, costs)
    fixed = np.zeros(placement.devices)
    np.add.at(fixed, list(placement.device), np.array(costs.weight_bytes))
    assert np.all(np.array(timeline.peak_bytes) - fixed <= limit * (1 + 1e-6))


@pytest.mark.parametrize(("p", "m"), [(1, 3), (4, 8), (8, 40)])
def test_it_finds_1f1b(p: int, m: int) -> None:
    costs = uniform(p, activation_bytes=1.0)
    timeline = simulate(greedy(chain(p), m, costs, memory_bytes=[float(p)] * p), costs)
    assert timeline.step_s == (m + p - 1) * 3
    assert max(timeline.peak_bytes) <= p


def test_a_limit_for_each_chunk_is_kept() -> None:
    costs = uniform(4, activation_bytes=1.0)
    schedule = greedy(bidirectional(4), 12, costs, in_flight=[1] * 8)
    assert max(simulate(schedule, costs).peak_bytes) <= 2


def test_no_room_is_an_error() -> None:
    costs = uniform(2, activation_bytes=2.0)
    with pytest.raises(PlanError, match="do not fit"):
        greedy(chain(2), 3, costs, memory_bytes=[1.0, 2.0])
