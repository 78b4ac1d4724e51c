"""The closed forms of the shortlist against the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.schedule_formulas import estimate_s, formulas, in_flight, pipe
from planner import PlanError
from planner.pipeline.schedule import (
    Links,
    StageCosts,
    build,
    schedules,
    simulate,
    uniform,
)
from tests.helpers_exhaustive import usual

TWO_CHUNKS = ("interleaved", "zb-v")
# Largest error on stages that differ by up to a fifth and transfers of up to a fifth of a task,
# with four micro-batches for each stage: bounds for the shortlist, measured on the cases below.
WITHIN = {
    "1f1b": 0.05, "1f1b-deep": 0.15, "1f1b-eager": 0.15, "1f1b-stashed": 0.05, "chimera": 0.10,
    "gpipe": 1e-9, "interleaved": 0.10, "zb-h1": 0.10, "zb-h2": 0.10, "zb-v": 0.10,
}  # fmt: skip


def both(
    name: str, p: int, m: int, times: tuple[np.ndarray, ...], transfer_s: float = 0.0
) -> tuple[float, float]:
    """Formula and simulator."""
    chunks = 2 if name in TWO_CHUNKS else 1
    f, b, w = times
    costs = StageCosts(
        forward_s=tuple(f.tolist()), input_gradient_s=tuple(b.tolist()),
        weight_gradient_s=tuple(w.tolist()), output_bytes=(transfer_s,) * len(f),
    )  # fmt: skip
    schedule = build(name, p, m)
    links = Links(bandwidth_bytes_per_s=1.0) if transfer_s else None
    given_ = pipe(f, b, w, microbatches=m, transfer_s=transfer_s, chunks=chunks)
    return float(estimate_s(name, given_)), simulate(schedule, costs, links).step_s


def test_only_token_slices_have_no_formula() -> None:
    assert set(schedules()) - set(formulas()) == {"token-slices"}
    with pytest.raises(PlanError, match="no closed form"):
        estimate_s("token-slices", pipe([1.0], [1.0], microbatches=1))


@pytest.mark.parametrize("name", formulas())
@pytest.mark.parametrize(("p", "units"), [(2, 2), (4, 2), (4, 5), (8, 3)])
def test_exact_for_equal_stages(name: str, p: int, units: int) -> None:
    n = p * (2 if name in TWO_CHUNKS else 1)
    for f, b, w in ((1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (2.0, 3.0, 2.0), (2.0, 4.0, 1.0)):
        times = tuple(np.full(n, x) for x in (f, b, w))
        ours, simulated = both(name, p, units * p, times)
        assert ours == pytest.approx(simulated, rel=1e-12)


@pytest.mark.parametrize("name", formulas())
@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31))
def test_near_for_unequal_stages_and_transfers(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = int(rng.choice([2, 4, 8]))
    n = p * (2 if name in TWO_CHUNKS else 1)
    times = tuple(1 + 0.2 * rng.uniform(-1, 1, n) for _ in range(3))
    ours, simulated = both(name, p, 4 * p, times, transfer_s=float(rng.uniform(0, 0.2)))
    assert abs(ours / simulated - 1) <= WITHIN[name]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), overlap=st.booleans())
def test_gpipe_is_exact_and_1f1b_hardly_below(seed: int, overlap: bool) -> None:
    rng = np.random.default_rng(seed)
    p, m = int(rng.integers(1, 7)), int(rng.integers(1, 20))
    f, b, w = (rng.integers(1, 9, p).astype(float) for _ in range(3))
    c = rng.integers(0, 9, p).astype(float)
    costs = StageCosts(
        forward_s=tuple(f.tolist()), input_gradient_s=tuple(b.tolist()),
        weight_gradient_s=tuple(w.tolist()), output_bytes=tuple(c.tolist()),
    )  # fmt: skip
    links = Links(bandwidth_bytes_per_s=1.0, overlap=overlap)
    x = pipe(f, b, w, microbatches=m, transfer_s=c[:-1], overlap=overlap)
    flow = simulate(build("gpipe", p, m), costs, links).step_s
    if overlap:
        assert float(estimate_s("gpipe", x)) == pytest.approx(flow, rel=1e-12)
    held = int(rng.integers(1, p + 1))
    for limit in (None, held):
        step_s = simulate(build("1f1b", p, m, in_flight=limit), costs, links).step_s
        assert float(estimate_s("1f1b", replace(x, in_flight=limit))) >= 0.85 * step_s


@pytest.mark.parametrize("held", usual([1, 2, 3, 4], [1, 3]))
@pytest.mark.parametrize("transfer_s", [0.0, 0.5, 2.0])
def test_the_period_of_1f1b_is_that_of_its_slowest_circuit(held: int, transfer_s: float) -> None:
    """From 400 micro-batches to 800 the simulated step grows by exactly 400 periods."""
    costs = StageCosts(
        forward_s=(1.0, 2.0, 1.0, 1.0), input_gradient_s=(2.0, 3.0, 1.0, 2.0),
        output_bytes=(transfer_s,) * 4,
    )  # fmt: skip
    links = Links(bandwidth_bytes_per_s=1.0)
    steps = [simulate(build("1f1b", 4, m, in_flight=held), costs, links).step_s for m in (400, 800)]
    x = pipe(costs.forward_s, costs.backward_s, microbatches=1, transfer_s=transfer_s,
             in_flight=held)  # fmt: skip
    period = float(estimate_s("1f1b", replace(x, microbatches=2)) - estimate_s("1f1b", x))
    assert (steps[1] - steps[0]) / 400 == pytest.approx(period, rel=1e-12)


@pytest.mark.parametrize("name", formulas())
@pytest.mark.parametrize(("p", "units"), [(2, 2), (4, 2), (4, 4), (8, 2)])
def test_activations_in_flight(name: str, p: int, units: int) -> None:
    chunks = 2 if name in TWO_CHUNKS else 1
    schedule = build(name, p, units * p)
    costs = uniform(p * chunks, activation_bytes=1.0 / chunks, weight_input_bytes=1.0 / chunks)
    if name == "chimera":
        costs = uniform(p, weight_gradient_s=0.0, activation_bytes=1.0)
    peaks = np.array(simulate(schedule, costs).peak_bytes)
    ones = np.ones(p * chunks)
    held = in_flight(name, pipe(ones, ones, ones, microbatches=units * p, chunks=chunks))
    assert np.all(peaks <= held + 1e-9)
    assert peaks.max() == pytest.approx(held.max())


def test_many_candidates_at_once() -> None:
    rng = np.random.default_rng(0)
    f, b, w = (rng.uniform(0.5, 1.5, (5, 7, 4)) for _ in range(3))
    for name in formulas():
        if name in TWO_CHUNKS:
            continue
        at_once = estimate_s(name, pipe(f, b, w, microbatches=8, transfer_s=0.1))
        assert at_once.shape == (5, 7)
        one = estimate_s(name, pipe(f[3, 2], b[3, 2], w[3, 2], microbatches=8, transfer_s=0.1))
        assert at_once[3, 2] == pytest.approx(float(one), rel=1e-12)
