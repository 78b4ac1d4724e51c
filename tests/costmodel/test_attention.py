"""Attention kernels: prices against timings, unseen sizes, and how prices grow."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.residual import attention_residuals
from costmodel import ComputeModel, parse_cluster
from costmodel.attention import BACKWARD, KernelFit, attention_fit, attention_table_fit
from profiles import load_profile, profile_names
from tests.helpers_exhaustive import usual

TABLES = {table.name: table for name in profile_names() if (table := load_profile(name).attention)}

# Batch, heads, key heads, head size, length and milliseconds of timings as they stand in the
# source (aiconfigurator-core 0.12.0, Apache-2.0), from which the shipped tables were thinned.
TIMINGS = {
    "h100": (
        (1, 32, 8, 128, 8192, 1.0845), (8, 32, 8, 128, 8192, 8.8811), (1, 32, 8, 128, 4096, 0.3387),
        (64, 32, 4, 128, 2048, 6.1599), (8, 32, 32, 128, 1024, 0.3274),
        (1, 32, 8, 128, 16384, 4.3367),
    ),
    "a100": ((4, 96, 4, 128, 16384, 178.05), (4, 96, 96, 128, 16384, 176.30)),
}  # fmt: skip


def model(device: str) -> ComputeModel:
    return ComputeModel(parse_cluster(f"8x{device}"))


def causal_s(device: str, heads: float, key_heads: float, length: float, size: float) -> float:
    pairs = length * (length + 1) / 2
    return float(model(device).attention_s(heads, key_heads, pairs, length, size, "bfloat16"))


@pytest.mark.parametrize("device", TIMINGS)
def test_tables_give_what_was_timed(device: str) -> None:
    fit = attention_table_fit(TABLES[device], "bfloat16")
    assert fit is not None
    for batch, heads, key_heads, size, length, ms in TIMINGS[device]:
        found = fit(length, batch * heads, batch * key_heads, length, size)
        assert float(found) == pytest.approx(ms / 1e3, rel=0.1)


def test_without_kernels_of_jax_the_tables_are_the_prices() -> None:
    fit = attention_table_fit(TABLES["a100"], "bfloat16")
    assert fit is not None
    found = causal_s("a100", 32.0, 8.0, 4096.0, 128.0)
    assert found == pytest.approx(float(fit(np.sqrt(4096.0 * 4097.0), 32.0, 8.0, 4096.0, 128.0)))


@pytest.mark.parametrize("backward", [False, True])
def test_kernels_of_jax_are_the_prices(backward: bool) -> None:
    rows = TABLES["h100"].kernels
    for device in ("h100", "h200"):  # the same chip
        errors: list[float] = []
        for row in rows:
            found = model(device).attention_s(
                row.heads, row.heads, row.pairs, row.keys, row.head_dim, row.dtype,
                unequal=row.keys - row.pairs / row.keys, backward=backward,
            )  # fmt: skip
            timed = row.backward_s if backward else row.seconds
            errors.append(abs(float(found) / timed - 1.0))
        assert np.median(errors) <= 0.04
        assert max(errors) <= 0.21  # one head of 8,192 keys, which leaves half of the device idle


def test_kernels_of_unseen_sizes_are_predicted() -> None:
    """Each from the others of its size, but for the shortest, the longest, and the fewest heads."""
    rows = TABLES["h100"].kernels
    errors: list[float] = []
    for left_out in rows:
        others = [r for r in rows if r != left_out]
        near = [r for r in others if r.head_dim == left_out.head_dim]
        shortest, *_, longest = sorted(r.seconds for r in near)
        if shortest < left_out.seconds < longest and min(r.heads for r in near) <= left_out.heads:
            fit, sizes = KernelFit(others), (left_out.heads, left_out.pairs, left_out.keys)
            unequal = left_out.keys - left_out.pairs / left_out.keys
            for backward, timed in ((False, left_out.seconds), (True, left_out.backward_s)):
                found = float(fit(*sizes, left_out.head_dim, unequal=unequal, backward=backward))
                errors.append(abs(found / timed - 1.0))
    assert len(errors) == 2 * (len(rows) - 6)
    assert np.median(errors) <= 0.06
    assert max(errors) <= 0.25


@pytest.mark.parametrize("name", usual(TABLES, ("a100", "b200")))
def test_unseen_sizes_are_predicted(name: str) -> None:
    (found,) = attention_residuals(TABLES[name])
    assert found.median <= 0.08
    assert found.p90 <= 0.15


@pytest.mark.parametrize("device", ["h100", "a100", "v100", "l4"])
def test_a_larger_kernel_is_never_faster(device: str) -> None:
    compute = model(device)
    start = (16.0, 4.0, 2.0**18, 1024.0, 96.0)
    for which in range(len(start)):
        times: list[float] = []
        for i in range(-20, 30):
            sizes = list(start)
            sizes[which] *= 1.3**i
            heads, key_heads, pairs, keys, features = sizes
            found = compute.attention_s(heads, key_heads, pairs, keys, features, "bfloat16")
            times.append(float(found))
        assert np.all(np.diff(times) >= 0.0), which


def test_the_backward_kernel_has_two_and_a_half_times_the_products_at_a_lower_rate() -> None:
    compute, length = model("b200"), 16384.0
    given = (32.0, 8.0, length * length / 2, length, 128.0, "bfloat16")
    ratio = float(compute.attention_s(*given, backward=True) / compute.attention_s(*given))
    assert ratio == pytest.approx(BACKWARD, rel=0.02)
    # FlashAttention-3, figures 5 and 6: cuDNN at 16384, forward 595 and backward 516 TFLOP/s.
    assert ratio == pytest.approx(2.5 * 595 / 516, rel=0.03)


def test_a_device_without_timings_is_priced_by_the_nearest() -> None:
    peak = {d: load_profile(d).device.peak("bfloat16") or 0.0 for d in ("a100", "l4")}
    sizes = (32.0, 8.0, 8192.0, 128.0)
    assert causal_s("l4", *sizes) == pytest.approx(
        causal_s("a100", *sizes) * peak["a100"] / peak["l4"]
    )


@pytest.mark.parametrize("name", ["h100", "h200", "b200", "gb200"])
def test_smaller_heads_than_timed_are_predicted(name: str) -> None:
    """Heads of 64 from timings of 128 alone; the time of 128 itself is far above theirs."""
    rows = [(r.head_dim, r.length, r.heads, r.key_heads, r.seconds) for r in TABLES[name].rows]
    small, large = ([row for row in rows if row[0] == size] for size in (64, 128))
    long = [row for row in small if row[-1] > 3e-4]
    fit = attention_fit(large)
    ratio = [float(fit(n, h, g, n, d)) / s for d, n, h, g, s in long]
    assert len(long) >= 100
    assert 0.7 < float(np.median(ratio)) <= 1.0
    at_once = [float(fit(n, h, g, n, 128)) / s for _, n, h, g, s in long]
    assert float(np.median(at_once)) > 1.25
