"""Lower estimates of stages, and what planned stages say of others."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import parse_cluster
from planner.pipeline.cut.chain import Chain, Slot
from planner.pipeline.divide.cost_profile import passing
from planner.pipeline.divide.run_costs import RECOMPUTE, Shares
from planner.pipeline.divide.stage_bounds import Known, StageBounds, StageKind
from planner.pipeline.divide.stage_price import StagePrice

WORK = [3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.0, 6.0]
KIND = StageKind(4, 2, "none")


def priced(total: float, saved_bytes: float = 1e6) -> StagePrice:
    """A price of the whole program, whose slots take time in proportion to their operations."""
    pass_ = passing([(work, work) for work in WORK])
    return StagePrice(
        total / 3, total / 3, total / 3, 0.0, 1e9, saved_bytes, 1e6, forward=pass_, back=pass_
    )


def bounds_of(limit_bytes: float = 1e12, **wholes: float) -> StageBounds:
    """Estimates from prices of the whole program, in seconds by number of micro-batches."""
    slots = tuple(
        Slot("op", i, work, (((i, 0, 1), work),), saved_bytes=work, products=work)
        for i, work in enumerate(WORK)
    )
    shares = Shares(Chain(slots, (0.0, *(1.0 for _ in WORK[1:]), 0.0)), parse_cluster("8xh100"))
    found = StageBounds(shares, 1e6, limit_bytes)
    for count, total in (wholes or {"m4": sum(WORK)}).items():
        found.wholes[int(count[1:]), 2] = priced(total)
    return found


def pace(bounds: StageBounds, kind: StageKind = KIND, flight: int = 1) -> np.ndarray:
    return bounds.costs(kind, flight, late=False).pace_s


def test_seconds_are_shared_out_as_they_pass():
    bounds = bounds_of()
    places = np.array(bounds.shares.places)
    sums = np.append(0.0, np.cumsum(WORK))[places]
    upper = np.triu_indices(len(places), 1)
    np.testing.assert_allclose(pace(bounds)[upper], (sums[None, :] - sums[:, None])[upper])


@given(st.integers(0, 7), st.integers(1, 8), st.floats(1.0, 3.0), st.integers(1, 3))
def test_a_planned_stage_raises_the_stages_that_contain_it(
    i: int, j: int, slower: float, flight: int
):
    if i >= j:
        return
    bounds = bounds_of()
    before = pace(bounds).copy()
    bounds.note(KIND, (i, j), Known(priced(before[i, j] * slower), flight))
    less, more = pace(bounds, flight=flight - 1), pace(bounds, flight=flight + 1)
    np.testing.assert_allclose(less, before)
    for a, b in itertools.combinations(range(len(before)), 2):
        added = before[i, j] * (slower - 1) if a <= i and j <= b else 0.0
        assert more[a, b] == pytest.approx(before[a, b] + added)
    assert pace(bounds, flight=flight)[i, j] == pytest.approx(before[i, j] * slower)


def test_a_planned_stage_that_is_faster_than_its_estimate_is_so_alone():
    bounds = bounds_of()
    before = pace(bounds).copy()
    bounds.note(KIND, (2, 5), Known(priced(before[2, 5] / 2), 1))
    after = pace(bounds)
    assert after[2, 5] == pytest.approx(before[2, 5] / 2)
    after[2, 5] = before[2, 5]
    np.testing.assert_allclose(after, before)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kind", RECOMPUTE)
@pytest.mark.parametrize("flight", [1, 2, 3])
def test_what_needs_more_memory_than_a_stage_that_does_not_fit_does_not_fit(
    count: int, size: int, kind: str, flight: int
):
    bounds = bounds_of()
    for d in (1, 4):
        bounds.wholes[4, d] = priced(sum(WORK) * 2 / d)
    bounds.note_short(StageKind(4, 2, "selective"), (2, 5), 2)
    found = pace(bounds, StageKind(count, size, kind), flight)
    more = count <= 4 and size <= 2 and flight >= 2 and kind in ("none", "selective")
    for a, b in itertools.combinations(range(len(found)), 2):
        assert np.isinf(found[a, b]) == (more and a <= 2 and b >= 5)


def test_a_stage_needs_at_least_its_part_of_the_program_on_all_its_devices():
    bounds = bounds_of(
        limit_bytes=2e6
    )  # state is 1e6, activations of a micro-batch 2e6, on two devices
    assert np.isfinite(pace(bounds)[0, -1])
    assert np.isinf(pace(bounds, flight=2)[0, -1])
    assert np.isfinite(pace(bounds, flight=2)[0, 1])
    assert np.isinf(pace(bounds, StageKind(4, 2, "none", chunks=2))[0, -1])


def test_between_two_numbers_of_micro_batches_seconds_lie_between():
    bounds = bounds_of(m4=20.0, m16=8.0)
    seconds = [bounds.whole(m, 2).price.microbatch_s for m in (2, 4, 8, 16)]
    assert seconds == pytest.approx([36.0, 20.0, 12.0, 8.0])  # 4 + 64 / m


def test_weight_gradients_of_a_loop_fill_no_idle_time():
    bounds = bounds_of()
    late = bounds.costs(KIND, 1, late=True)
    upper = np.triu_indices(len(late.pace_s), 1)
    np.testing.assert_allclose(late.fill_s[upper], late.pace_s[upper] / 3)
    whole = priced(sum(WORK))
    fused = StagePrice(
        whole.forward_s, 0.0, 2 * whole.forward_s, 0.0, 1e9, 1e6, 1e6,
        forward=whole.forward, back=whole.back,
    )  # fmt: skip
    bounds = bounds_of()
    bounds.wholes[4, 2] = fused
    late = bounds.costs(KIND, 1, late=True)
    np.testing.assert_allclose(late.fill_s[upper], late.pace_s[upper])
