"""Estimates of stages, corrected by those that were planned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.pipeline.divide.corrected_estimates import Estimates, Known
from planner.pipeline.divide.cost_profile import passing
from planner.pipeline.divide.stage_price import StagePrice

from .test_by_hand import shares_of

WORK = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
KEY = (4, 2, "none")  # micro-batches, devices, recomputation


def estimates_of(count: int = 4, scale: float = 1.0) -> Estimates:
    """One price of the whole program, whose slots take a second for each operation."""
    shares = shares_of(WORK)
    pass_ = passing([(work, work) for work in WORK])
    total = sum(WORK) * scale
    price = StagePrice(total / 3, 0.0, 2 * total / 3, 0.0, 1e9, 1e6, 1e6, forward=pass_, back=pass_)
    return Estimates(shares, {(count, 2): price})


def micro(estimates: Estimates, count: int = 4) -> np.ndarray:
    found = estimates.costs(count, 2, "none")
    assert found is not None
    return found.micro_s


def test_seconds_are_shared_out_as_they_pass():
    estimates = estimates_of()
    places = np.array(estimates.shares.places)
    sums = np.append(0.0, np.cumsum(WORK))[places]
    upper = np.triu_indices(len(places), 1)
    np.testing.assert_allclose(micro(estimates)[upper], (sums[None, :] - sums[:, None])[upper])


@given(st.integers(0, 7), st.integers(1, 8), st.floats(0.3, 3.0))
def test_what_is_known_holds_there_and_paces_the_rest(i: int, j: int, pace: float):
    if i >= j:
        return
    estimates = estimates_of()
    before = micro(estimates).copy()
    estimates.note(*KEY, (i, j), Known(before[i, j] * pace, 1.0, 1.0))
    after = micro(estimates)
    assert after[i, j] == pytest.approx(before[i, j] * pace)
    upper = np.triu_indices(len(after), 1)
    np.testing.assert_allclose(after[upper], before[upper] * pace)  # nothing else is known


def test_a_part_has_the_pace_of_the_shortest_run_that_it_is_in():
    estimates = estimates_of()
    before = micro(estimates).copy()
    estimates.note(*KEY, (0, 4), Known(before[0, 4] * 2.0, 1.0, 1.0))
    estimates.note(*KEY, (0, 2), Known(before[0, 2] * 3.0, 1.0, 1.0))
    after = micro(estimates)
    assert after[0, 1] == pytest.approx(before[0, 1] * 3.0)
    assert after[2, 3] == pytest.approx(before[2, 3] * 2.0)
    assert after[0, 4] == pytest.approx(before[0, 4] * 2.0)  # as planned


def test_between_two_numbers_of_micro_batches_seconds_lie_between():
    estimates = estimates_of()
    estimates.wholes[16, 2] = estimates_of(16, 0.25).wholes[16, 2]
    low, high, between = micro(estimates, 16), micro(estimates, 4), micro(estimates, 8)
    upper = np.triu_indices(len(low), 1)
    assert np.all((low[upper] < between[upper]) & (between[upper] < high[upper]))
    assert estimates.costs(2, 2, "none") is None
