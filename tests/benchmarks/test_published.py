from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.published import Case, cases, predict, rank_correlation
from benchmarks.published_memory import (
    BILLIONS,
    DAPPLE,
    LARGEST_32_GB,
    MODELS,
    SHARES,
    ZERO,
    dapple_gb,
    largest_billions,
    zero_gb,
)
from benchmarks.transformer_step import Degrees, Estimate, Model, activation_bytes, estimate
from costmodel import parse_cluster

# Sources that state all settings and whose frameworks overlap and fuse what the formula assumes.
SCORED = ("Alpa end to end", "Megatron-LM README", "Megatron-LM SC'21", "Korthikanti")


@cache
def predicted() -> tuple[tuple[Case, Estimate, bool], ...]:
    return tuple((case, *predict(case)[1:]) for case in cases() if "foundry" not in case.source)


def test_every_out_of_memory_cross_is_right() -> None:
    wrong = [(c.source, c.name) for c, _, fits in predicted() if fits != (c.step_s is not None)]
    assert wrong == []


def test_step_times_follow_the_published_ones() -> None:
    pairs = [
        (c.step_s, e.step_s)
        for c, e, _ in predicted()
        if c.step_s is not None and c.source.startswith(SCORED)
    ]
    took, said = np.array(pairs).T
    assert len(pairs) > 40
    assert np.median(np.abs(said / took - 1.0)) < 0.15
    assert rank_correlation(took.tolist(), said.tolist()) > 0.9


@pytest.mark.parametrize("place", ZERO)
def test_zero_memory_table(place: tuple[int, int]) -> None:
    for billions, published in zip(BILLIONS, ZERO[place], strict=True):
        # the table is rounded to the digits it prints
        assert zero_gb(*place, billions) == pytest.approx(published, rel=0.01, abs=0.01)


def test_largest_models() -> None:
    for stage, billions in LARGEST_32_GB.items():
        assert largest_billions(stage, 64, 32.0) == pytest.approx(billions, rel=0.01)
    for layers, gigabytes in DAPPLE.items():
        assert dapple_gb(layers) == pytest.approx(gigabytes, rel=0.03)


@pytest.mark.parametrize("name", MODELS)
def test_activation_memory_shares(name: str) -> None:
    layers, hidden, heads, micro = MODELS[name]
    model = Model(layers, hidden, heads, heads, 4 * hidden, False, 51200, 2048)
    base = Degrees(tensor=8, micro_batch=micro, flash=False)
    s, b, h, a, t = 2048, micro, hidden, heads, 8
    whole = activation_bytes(model, base)
    assert whole == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)))
    for changes, low, high in SHARES.values():
        one = Degrees(tensor=8, micro_batch=micro, flash=False, **changes)
        assert low <= activation_bytes(model, one) / whole <= high


def test_a_pipeline_without_communication_is_the_closed_form() -> None:
    model = Model(8, 1024, 8, 8, 4096, False, 64, 256)
    one = estimate(model, Degrees(pipeline=1), 32, parse_cluster("1xh100")).step_s
    four = estimate(model, Degrees(pipeline=4), 32, parse_cluster("4xh100")).step_s
    assert four > one * (32 + 3) / (32 * 4)
    finer = Degrees(pipeline=4, chunks=2)
    assert estimate(model, finer, 32, parse_cluster("4xh100")).step_s < one


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_equal_stages_on_the_simulator_are_the_closed_form(chunks: int) -> None:
    model = Model(16, 2048, 16, 16, 8192, False, 64, 1024)
    degrees, machine = Degrees(pipeline=4, chunks=chunks), parse_cluster("4xh100")
    closed = estimate(model, degrees, 16, machine)
    run = estimate(model, degrees, 16, machine, simulated=True)
    assert run.peak_bytes == closed.peak_bytes
    assert run.step_s == pytest.approx(closed.step_s, rel=0.05)
    # all that the last stage does, and filling it
    assert run.step_s > closed.step_s * 0.9


def test_degrees_that_do_not_divide_are_refused() -> None:
    model = Model(8, 1024, 8, 8, 4096, False, 64, 256)
    with pytest.raises(ValueError, match="does not divide"):
        estimate(model, Degrees(data=2), 32, parse_cluster("8xh100"))
