# pyright: basic
"""Grouped products: work that is split, unequal groups, and memory."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodel import (
    IMBALANCE,
    INTERFERENCE,
    CollectiveModel,
    ComputeModel,
    GroupedWork,
    Hops,
    fetched_of,
    group_for,
    parse_cluster,
)
from costmodel.grouped import load, own_share
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
        assert alone / 8.0 * 0.9 < split < alone * 0.55, name
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
    hops = Hops(CollectiveModel(cluster), (None, None, near), overlap=True)
    exchange = work.exchange(MODEL, hops)
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


def drawn(n: int, groups: int, imbalance: float) -> Floats:
    """Shares of groups, whose largest of n devices is in the mean what is priced."""
    normal: Floats = np.random.default_rng(0).normal(size=(60, groups))
    least, most = 0.0, 3.0
    for _ in range(20):
        shares = np.exp((least + most) / 2 * normal)
        shares /= shares.sum(axis=1, keepdims=True)
        largest = float(np.mean(shares.reshape(60, n, -1).sum(axis=2).max(axis=1))) * n
        middle = (least + most) / 2
        expected = float(load(np.array(n), imbalance))
        least, most = (middle, most) if largest < expected else (least, middle)
    return shares


@pytest.mark.parametrize(
    ("n", "groups"), [(8, 8), (8, 128), (8, 256), (32, 256), (64, 64), (64, 256), (256, 256)]
)
@pytest.mark.parametrize("imbalance", [0.05, 0.1, 0.2, 0.4])
def test_matrices_are_fetched_as_drawn_loads_need(n: int, groups: int, imbalance: float) -> None:
    """The device that lacks or sends most matrices has about as many as are priced."""
    edges, found = np.arange(n)[:, None] / n, list[float]()
    own = np.arange(groups) // (groups // n) == np.arange(n)[:, None]
    for shares in drawn(n, groups, imbalance):
        ends = np.cumsum(shares)
        lacks = (ends - shares < edges + 1 / n) & (ends > edges) & ~own
        sent = lacks.reshape(n, n, -1).sum(axis=(0, 2))
        found.append(max(int(lacks.sum(axis=1).max()), int(sent.max())))
    priced = float(fetched_of(groups, np.array(float(n)), imbalance))
    assert 0.5 * priced < np.mean(found) < 1.7 * priced
    if imbalance == IMBALANCE:  # as many as the emitted program fetches in a round
        assert 0.55 * priced < np.mean(found) < 1.2 * priced


@pytest.mark.parametrize(
    ("n", "groups"), [(2, 64), (4, 64), (8, 128), (16, 256), (32, 256), (64, 128), (64, 256)]
)
@pytest.mark.parametrize("imbalance", [0.05, 0.1, 0.2])
def test_rows_of_own_groups_are_as_many_as_of_drawn_loads(
    n: int, groups: int, imbalance: float
) -> None:
    """Of the device that has fewest."""
    starts, found = np.arange(n)[:, None] / n, list[float]()
    own = np.arange(groups) // (groups // n) == np.arange(n)[:, None]
    for shares in drawn(n, groups, imbalance):
        ends = np.cumsum(shares)
        here = np.minimum(ends, starts + 1 / n) - np.maximum(ends - shares, starts)
        found.append(float((np.maximum(here, 0.0) * own).sum(axis=1).min()) * n)
    priced = float(own_share(np.array(float(n)), imbalance))
    assert priced == pytest.approx(np.mean(found), abs=0.1)


@pytest.mark.parametrize("sizes", SIZES)
def test_matrices_are_fetched_beside_rows_of_own_groups(sizes: GroupedSizes) -> None:
    cluster = parse_cluster("8xh100")
    group = (group_for(cluster, (8,), (0,)),)
    ways = {"near": np.array([8.0])}
    for is_gradient in (False, True):
        given = replace(sizes, matrix_dims=() if is_gradient else (0, 1, 2))
        work = GroupedWork(given, "bfloat16", ways)
        beside, alone = (
            work.exchange(MODEL, Hops(CollectiveModel(cluster), group, overlap=overlap))
            for overlap in (True, False)
        )
        assert float(alone.exposed_s[0]) == float(alone.seconds[0]) > 0.0
        own_s = float(own_share(np.array(8.0))) * float(np.ravel(work.seconds(MODEL))[0])
        hidden_s = min(float(beside.seconds[0]), INTERFERENCE * own_s) / INTERFERENCE
        shown_s = float(beside.seconds[0]) - (0.0 if is_gradient else hidden_s)
        assert float(beside.exposed_s[0]) == pytest.approx(shown_s)


def test_rounds_of_matrices_after_the_first_show() -> None:
    """Only the first is beside the rows of own groups."""
    cluster, ways = parse_cluster("8xh100"), {"near": np.array([8.0])}
    group = (group_for(cluster, (8,), (0,)),)
    hops = Hops(CollectiveModel(cluster), group, overlap=True)
    work = GroupedWork(SIZES[0], "bfloat16", ways)
    usual = work.exchange(MODEL, hops)
    work.fetched = 3.0 * work.room
    more = work.exchange(MODEL, hops)
    later_s = more.seconds - usual.seconds
    assert float(later_s[0]) > 0.0
    assert float(more.exposed_s[0]) >= float((usual.exposed_s + later_s)[0]) * (1 - 1e-9)


@pytest.mark.parametrize("sizes", SIZES)
def test_equal_groups_cost_nothing_more(sizes: GroupedSizes) -> None:
    """A router that is held balanced: no device waits, and rows are where their matrices are."""
    cluster = parse_cluster("8xh100")
    hops = Hops(CollectiveModel(cluster), (group_for(cluster, (8,), (0,)),), overlap=True)
    for name in ("g", "near"):
        ways = {name: np.array([8.0])}
        even = GroupedWork(sizes, "bfloat16", ways, 0.0)
        uneven = GroupedWork(sizes, "bfloat16", ways)
        assert float(even.own[0]) == sizes.rows / 8
        assert float(even.exchange(MODEL, hops).sent_bytes[0]) == 0.0
        assert float(np.ravel(even.seconds(MODEL) - uneven.seconds(MODEL))[0]) <= 0.0
        np.testing.assert_array_equal(even.held_bytes(), uneven.held_bytes())


def test_a_round_has_no_more_than_the_other_devices() -> None:
    np.testing.assert_array_equal(fetched_of(8.0, np.array([1.0, 2.0, 4.0, 8.0])), [0, 4, 4, 3])


@pytest.mark.parametrize("sizes", SIZES)
def test_groups_nearby(sizes: GroupedSizes) -> None:
    """As even as split rows; on 8 devices less than half of what gathers of all matrices send."""
    near = GroupedWork(sizes, "bfloat16", {"near": np.array([8.0])})
    assert float(near.own[0]) == sizes.rows / 8
    assert seconds(sizes, near=8.0) < seconds(sizes, g=8.0) * 1.5
    cluster = parse_cluster("8xh100")
    hops = Hops(CollectiveModel(cluster), (group_for(cluster, (8,), (0,)),), overlap=True)
    sent = near.exchange(MODEL, hops)
    item = 4.0 if sizes.contracts_rows else 2.0
    gathered = 7 / 8 * sizes.groups * sizes.depth * sizes.width * item
    assert 0.0 < float(sent.sent_bytes[0]) < 0.5 * gathered
    assert float(sent.seconds[0]) >= float(sent.exposed_s[0]) > 0.0
    alone = GroupedWork(sizes, "bfloat16", {"m": np.array([8.0])})
    assert float(alone.exchange(MODEL, hops).count[0]) == 0.0
