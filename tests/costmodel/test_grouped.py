# pyright: basic
"""Grouped products: work that is split, unequal groups, and memory."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodel import (
    CollectiveModel,
    ComputeModel,
    GroupedWork,
    Hops,
    group_for,
    parse_cluster,
    rounds_of,
)
from costmodel.grouped import load
from ir import TILES_AT_ONCE, GroupedSizes

Floats = NDArray[np.float64]

MODEL = ComputeModel(parse_cluster("8xh100"))
LOADS = Path(__file__).parents[2] / "benchmarks" / "data" / "experts_load.csv"
# Qwen3-30B-A3B with 32,768 tokens, and Mixtral 8x7B with 8,192
SIZES = (GroupedSizes(262144, 128, 2048, 768, (0, 1, 2)), GroupedSizes(16384, 8, 4096, 14336, ()))


def seconds(sizes: GroupedSizes, **ways: float) -> float:
    arrays = {name: np.array([n]) for name, n in ways.items()}
    return float(np.ravel(GroupedWork(sizes, "bfloat16", arrays).seconds(MODEL))[0])


def test_the_busiest_device_is_that_of_the_measured_medians() -> None:
    """Within a tenth of every median of the milder power law, against one device."""
    lines = [line for line in LOADS.read_text().splitlines() if not line.startswith("#")]
    rows = [r for r in csv.DictReader(lines) if r["distribution"] == "power_law_1.01"]
    alone = next(float(r["median"]) for r in rows if r["devices"] == "1")
    assert len(rows) == 8
    for row in rows:
        expected = float(row["median"]) / alone
        assert float(load(np.array(float(row["devices"])))) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("sizes", SIZES)
def test_every_split_saves_work(sizes: GroupedSizes) -> None:
    """No split is faster than an even share of the products; that of groups waits for the busiest.

    Tiles of one group's rows, copies of its matrix and launches keep a split from being ideal.
    """
    alone = seconds(sizes)
    for name in ("m", "g", "k", "n"):
        split = seconds(sizes, **{name: 8.0})
        assert alone / 8.0 * 0.9 < split < alone / 2.0, name
    assert seconds(sizes, g=8.0) > alone / 8.0 * load(np.array(8.0)) * 0.9


@pytest.mark.parametrize("sizes", SIZES)
def test_no_faster_than_the_products_at_the_peak(sizes: GroupedSizes) -> None:
    flops = 2.0 * sizes.rows * sizes.depth * sizes.width
    assert seconds(sizes) > flops / MODEL.peak_flops("bfloat16", tensor=True)


@pytest.mark.parametrize("empty", [(0, 8, 4, 4), (16, 0, 4, 4), (16, 8, 0, 4), (16, 8, 4, 0)])
@pytest.mark.parametrize("dims", [(0, 1, 2), ()], ids=["rows", "gradient"])
def test_without_elements_nothing_is_paid(empty: tuple[int, ...], dims: tuple[int, ...]) -> None:
    rows, groups, depth, width = empty
    work = GroupedWork(
        GroupedSizes(rows, groups, depth, width, dims), "float32",
        {"m": np.array([1.0, 8.0, 1.0]), "near": np.array([1.0, 1.0, 8.0])},
    )  # fmt: skip
    cluster = parse_cluster("8xh100")
    near = group_for(cluster, (8,), (0,))
    exchange = work.exchange(Hops(CollectiveModel(cluster), (None, None, near), overlap=True))
    for found in (work.seconds(MODEL), work.held_bytes(), exchange.count, exchange.seconds):
        np.testing.assert_array_equal(found, np.zeros(3))


def test_rows_and_groups_split_together_overlap_at_the_diagonal() -> None:
    """Rows are in the order of groups: half of them has half of the groups."""
    both = GroupedWork(SIZES[0], "bfloat16", {"m": np.array([2.0]), "g": np.array([2.0])})
    assert float(both.own[0]) == SIZES[0].rows / 2


def test_memory_is_of_some_tiles_and_not_of_rows_times_groups() -> None:
    sizes = SIZES[0]
    held = float(np.ravel(GroupedWork(sizes, "bfloat16", {}).held_bytes())[0])
    tile = sizes.tile_rows * (sizes.depth + sizes.width) + sizes.depth * sizes.width
    assert held == TILES_AT_ONCE * tile * 2.0
    assert held < sizes.rows * sizes.depth * 2.0


def test_rounds_are_those_of_drawn_loads() -> None:
    """Loads of devices are drawn whose largest is in the mean what is priced."""
    rng = np.random.default_rng(0)
    for n in (8, 64, 256):
        drawn: Floats = rng.normal(size=(4000, n))
        wanted = float(load(np.array(float(n))))
        loads: Floats = 1.0 + drawn * (wanted - 1.0) / np.mean(drawn.max(axis=1))
        assert abs(float(np.mean(loads.max(axis=1))) - wanted) < 1e-3 * wanted
        before: Floats = np.cumsum(loads / loads.mean(axis=1, keepdims=True), axis=1)
        far = np.max(before - np.arange(1, n + 1), axis=1)
        found = float(rounds_of(np.array(float(n))))
        assert abs(found - (1.0 + np.mean(far))) < 0.15 + 0.25 * np.mean(far), n


def test_rounds_end_with_the_other_devices() -> None:
    ways = np.array([1.0, 2.0, 3.0, 1024.0])
    found = rounds_of(ways)
    assert found[0] == 0.0
    assert found[1] == 1.0
    assert np.all(found[2:] < ways[2:])


@pytest.mark.parametrize("sizes", SIZES)
def test_groups_nearby(sizes: GroupedSizes) -> None:
    """As even as split rows; on 8 devices half of what gathers of all matrices send, or less."""
    near = GroupedWork(sizes, "bfloat16", {"near": np.array([8.0])})
    assert float(near.own[0]) == sizes.rows / 8
    assert seconds(sizes, near=8.0) < seconds(sizes, g=8.0) * 1.5
    cluster = parse_cluster("8xh100")
    hops = Hops(CollectiveModel(cluster), (group_for(cluster, (8,), (0,)),), overlap=True)
    sent = near.exchange(hops)
    item = 4.0 if sizes.contracts_rows else 2.0
    gathered = 7 / 8 * sizes.groups * sizes.depth * sizes.width * item
    assert 0.0 < float(sent.sent_bytes[0]) < 0.5 * gathered
    assert float(sent.exposed_s[0]) == float(sent.seconds[0]) > 0.0
    alone = GroupedWork(sizes, "bfloat16", {"m": np.array([8.0])})
    assert float(alone.exchange(hops).count[0]) == 0.0
