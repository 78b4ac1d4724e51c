"""Closed forms of the papers, exactly, under the conditions that they state.

t_f, t_b, t_w: forward, input gradient, weight gradient of a stage for one micro-batch; p stages,
M micro-batches. Numbers are chosen so that floating point adds them exactly.
"""

from __future__ import annotations

import pytest

from planner.pipeline.schedule import StageCosts, build, simulate, uniform

SIZES = [(1, 1), (2, 3), (4, 4), (4, 16), (8, 8), (8, 32), (7, 20)]
TIMES = [(1.0, 1.0, 1.0), (1.0, 1.0, 0.0), (1.0, 1.0, 0.5), (2.0, 3.0, 1.0)]


def costs(stages: int, f: float, b: float, w: float) -> StageCosts:
    return uniform(
        stages, forward_s=f, input_gradient_s=b, weight_gradient_s=w, activation_bytes=1.0,
        weight_input_bytes=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(("f", "b", "w"), TIMES)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe_and_1f1b(p: int, m: int, f: float, b: float, w: float) -> None:
    """(M + p - 1)(t_f + t_b + t_w); GPipe keeps M micro-batches, stage i of 1F1B min(M, p - i)."""
    for name in ("gpipe", "1f1b", "1f1b-eager", "1f1b-deep"):
        timeline = simulate(build(name, p, m), costs(p, f, b, w))
        assert timeline.step_s == (m + p - 1) * (f + b + w)
        assert timeline.bubble == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
    assert simulate(build("gpipe", p, m), costs(p, f, b, w)).peak_bytes == (m,) * p
    held = simulate(build("1f1b", p, m), costs(p, f, b, w)).peak_bytes
    assert held == tuple(min(m, p - i) for i in range(p))
    eager = simulate(build("1f1b-eager", p, m), costs(p, f, b, w)).peak_bytes
    assert eager == tuple(min(m, 2 * (p - i) - 1) for i in range(p))
    deep = simulate(build("1f1b-deep", p, m), costs(p, f, b, w)).peak_bytes
    assert deep == tuple(min(m, 4 * (p - i) - 3) for i in range(p))


@pytest.mark.parametrize(("f", "b", "w"), TIMES)
@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 4, 2), (4, 8, 3), (8, 32, 4), (3, 6, 1)])
def test_interleaved(p: int, m: int, v: int, f: float, b: float, w: float) -> None:
    """Bubble of 1F1B over v; memory of the first device p (1 + (p - 1) / (p v)) stages."""
    timeline = simulate(build("interleaved", p, m, chunks=v), costs(p * v, f, b, w))
    assert timeline.step_s == (m * v + p - 1) * (f + b + w)
    if m > p:
        assert timeline.peak_bytes[0] == p * v + p - 1


@pytest.mark.parametrize(("f", "b", "w"), TIMES)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 4), (4, 16), (8, 8), (8, 32), (7, 20)])
def test_zero_bubble_h1(p: int, m: int, f: float, b: float, w: float) -> None:
    """Idle (p - 1)(t_f + t_b - t_w), p micro-batches everywhere, for t_w <= t_b, t_f and M >= p."""
    timeline = simulate(build("zb-h1", p, m), costs(p, f, b, w))
    assert timeline.step_s - m * (f + b + w) == (p - 1) * (f + b - w)
    assert max(timeline.peak_bytes) == p


@pytest.mark.parametrize(("f", "b", "w"), TIMES)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (8, 16), (8, 40), (7, 20)])
def test_zero_bubble_h2(p: int, m: int, f: float, b: float, w: float) -> None:
    """Idle (p - 1)(t_f + t_b - 2 t_w) between first and last task, 2p - 1 micro-batches."""
    timeline = simulate(build("zb-h2", p, m), costs(p, f, b, w))
    assert timeline.period_s - m * (f + b + w) == (p - 1) * (f + b - 2 * w)
    assert max(timeline.peak_bytes) == 2 * p - 1


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 4), (3, 7), (4, 8), (8, 16), (8, 40), (6, 12)])
def test_zero_bubble_v(p: int, m: int) -> None:
    """No idle time between first and last task if all three times are equal; 2p chunks."""
    timeline = simulate(build("zb-v", p, m), costs(2 * p, 1.0, 1.0, 1.0))
    assert timeline.period_s == 6 * m
    assert timeline.step_s == 6 * m + p - 1
    assert max(timeline.peak_bytes) == 2 * p


@pytest.mark.parametrize("units", [1, 2, 4])
@pytest.mark.parametrize("d", [2, 4, 6, 8, 16])
def test_chimera_with_equal_times(d: int, units: int) -> None:
    """Bubble share (D - 2) / (2N + D - 2); activations between D/2 + 1 and D micro-batches."""
    n = d * units
    timeline = simulate(build("chimera", d, n), costs(d, 1.0, 1.0, 0.0))
    assert timeline.bubble == pytest.approx((d - 2) / (2 * n + d - 2), abs=1e-12)
    assert max(timeline.peak_bytes) == d
    assert min(timeline.peak_bytes) == d // 2 + 1


@pytest.mark.parametrize("b", [1.0, 2.0])
@pytest.mark.parametrize("d", [4, 6, 8, 16])
def test_chimera_with_one_unit(d: int, b: float) -> None:
    """D forwards and 2D - 2 backwards on the critical path for N = D."""
    timeline = simulate(build("chimera", d, d), costs(d, 1.0, b, 0.0))
    assert timeline.step_s == d + (2 * d - 2) * b


@pytest.mark.parametrize("units", [1, 2, 3])
@pytest.mark.parametrize(("d", "pairs"), [(8, 2), (12, 2), (16, 4), (24, 3)])
def test_chimera_with_more_pairs(d: int, pairs: int, units: int) -> None:
    """Idle time D / f - 2 of equal forwards for f pairs, that is bubble (D - 2f)/(2fN + D - 2f)."""
    n = d * units
    timeline = simulate(build("chimera", d, n, pairs=pairs), costs(d, 1.0, 1.0, 0.0))
    share = (d - 2 * pairs) / (2 * pairs * n + d - 2 * pairs)
    assert timeline.bubble == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("shares", [(), (0.5, 0.25, 0.125, 0.125), (0.125, 0.125, 0.25, 0.5)])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (3, 1), (4, 2), (8, 3)])
def test_token_slices(p: int, m: int, shares: tuple[float, ...]) -> None:
    """Forwards take sum_i t_i + (p - 1) max_i t_i over all slices, and so do backwards."""
    slices = uniform(p, forward_s=4.0, input_gradient_s=8.0, weight_gradient_s=0.0)
    slices = StageCosts(
        forward_s=slices.forward_s, input_gradient_s=slices.input_gradient_s, slice_share=shares
    )
    timeline = simulate(build("token-slices", p, m, slices=4), slices)
    most = max(shares, default=0.25)
    assert timeline.step_s == (4.0 + 8.0) * (m + (p - 1) * most)


@pytest.mark.parametrize(("p", "m"), [(1, 4), (3, 9), (4, 16)])
def test_stashed_weights(p: int, m: int) -> None:
    """PipeDream keeps p - i versions on stage i and has no bubble after the fill; 2BW keeps 2."""
    weights = uniform(p, weight_bytes=1.0)
    each = simulate(build("1f1b-stashed", p, m), weights)
    assert each.peak_bytes == tuple(float(p - i) for i in range(p))
    assert each.step_s == (m + p - 1) * 3
    shared = simulate(build("1f1b-stashed", p, m, update_every=p), weights)
    assert max(shared.peak_bytes) <= 2


def test_gpipe_table_2() -> None:
    """Transformer-48, M = 32: throughput of 2, 4, 8 accelerators; measured within 8 % of ours.

    Source: Huang et al., GPipe, NeurIPS 2019, table 2.
    """
    for devices, published in ((2, 1.8), (4, 3.4), (8, 6.3)):
        one = simulate(build("gpipe", 1, 32), uniform(1, forward_s=8.0, input_gradient_s=8.0))
        share = 8.0 / devices
        parts = uniform(
            devices, forward_s=share, input_gradient_s=share, weight_gradient_s=1.0 / devices
        )
        many = simulate(build("gpipe", devices, 32), parts)
        ours = one.step_s / many.step_s
        assert published <= ours <= published * 1.08
