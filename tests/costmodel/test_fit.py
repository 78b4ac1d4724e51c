from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import fit_curve
from costmodel.fit import isotonic_median, monotone_grid

times = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12)


@given(times, st.floats(1.0, 1e9), st.floats(1.0, 100.0))
def test_a_curve_never_falls(seconds: list[float], size: float, factor: float) -> None:
    curve = fit_curve(2.0 ** np.arange(len(seconds)), seconds)
    assert 0.0 < float(curve(size)) <= float(curve(size * factor)) * (1 + 1e-9)
    assert float(curve(0.0)) == 0.0


@given(times)
def test_rising_times_are_kept(seconds: list[float]) -> None:
    rising = sorted(seconds)
    size = 2.0 ** np.arange(len(rising))
    np.testing.assert_allclose(fit_curve(size, rising)(size), rising, rtol=1e-9)


def test_one_slow_first_run_does_not_lift_the_rest() -> None:
    curve = fit_curve([1, 2, 4, 8, 16], [100.0, 1.0, 1.0, 1.0, 2.0])
    np.testing.assert_allclose(curve([1, 2, 4, 8, 16]), [1, 1, 1, 1, 2])


def test_outside_the_knots() -> None:
    curve = fit_curve([10, 20, 40], [1.0, 2.0, 4.0])
    assert float(curve(1)) == pytest.approx(1.0)
    assert float(curve(400)) == pytest.approx(40.0)
    assert float(fit_curve([10], [1.0])(20)) == pytest.approx(2.0)


@pytest.mark.parametrize(("size", "seconds"), [([], []), ([0], [1]), ([1], [0]), ([1, 2], [1])])
def test_bad_points(size: list[float], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="needs positive sizes and seconds"):
        fit_curve(size, seconds)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=3), min_size=1, max_size=6))
def test_isotonic_median_never_falls_and_beats_constants(samples: list[list[float]]) -> None:
    found = isotonic_median(samples)
    assert np.all(np.diff(found) >= 0)

    def error(fit: np.ndarray) -> float:
        return sum(float(np.abs(np.array(s) - f).sum()) for s, f in zip(samples, fit, strict=True))

    flat = np.full(len(samples), np.median(np.concatenate(samples)))
    assert error(found) <= error(flat) + 1e-9


@given(st.integers(0, 2**32 - 1))
def test_a_grid_never_falls(seed: int) -> None:
    grid = np.random.default_rng(seed).normal(size=(3, 4, 2))
    found = monotone_grid(grid)
    assert all(np.all(np.diff(found, axis=axis) >= 0) for axis in range(3))
    np.testing.assert_allclose(monotone_grid(found), found)


def test_a_curve_meets_latency_plus_rate_between_its_knots() -> None:
    size = 2.0 ** np.arange(10, 30, 2)
    curve = fit_curve(size, 5e-6 + size / 1e9)
    between = size[:-1] * 2.0
    np.testing.assert_allclose(curve(between), 5e-6 + between / 1e9, rtol=1e-9)
