"""Grouped products: work that is split, unequal groups, and memory."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from costmodel import ComputeModel, GroupedWork, parse_cluster
from costmodel.grouped import load
from ir import TILES_AT_ONCE, GroupedSizes

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
