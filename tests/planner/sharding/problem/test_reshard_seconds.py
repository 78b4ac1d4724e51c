"""Seconds of reshards that are computed where they are read, held against the sum over sites."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel import INTERFERENCE
from planner.sharding.problem.overlap_tables import lengths_of
from planner.sharding.problem.reshard_seconds import Lengths, Reshards
from planner.solver.problem import Floats
from planner.solver.tables import some, whole


def split(table: Floats, lengths: Lengths) -> tuple[Floats, Floats]:
    """The paid and the hidden seconds at several sites, from their definition."""
    finite = np.where(np.isfinite(table), table, 0.0)
    hidden = sum(
        (k * np.minimum(finite / INTERFERENCE, longest_s) for longest_s, k in lengths),
        np.zeros(table.shape),
    )
    paid = sum(k for _, k in lengths) * finite - hidden
    return np.where(np.isfinite(table), paid, np.inf), hidden


def drawn(seed: int) -> tuple[Reshards, Floats, Lengths]:
    """Reshards, their seconds as an array, and sites."""
    rng = np.random.default_rng(seed)
    matrix = rng.random((5, 6)) * (rng.random((5, 6)) < 0.8)
    matrix[rng.random(matrix.shape) < 0.2] = np.inf
    rows, columns = rng.integers(-1, 5, 8), rng.integers(-1, 6, 7)
    weight = float(rng.choice([0.0, 1.0, 12.0]))
    runs = np.where(np.isfinite(matrix), matrix, 0.0) * weight
    table = np.where(np.isfinite(matrix), runs, np.inf)[rows][:, columns]
    table[rows < 0], table[:, columns < 0] = np.inf, np.inf
    found = Reshards(matrix, weight, rows, columns)
    sites = [
        (float(rng.choice([0.0, 0.1, rng.random(), 2.0])), int(rng.integers(1, 5)))
        for _ in range(int(rng.integers(1, 12)))
    ]
    return found, table, lengths_of(found.most, sites)


@pytest.mark.parametrize("seed", range(20))
def test_paid_and_hidden_seconds_are_sums_over_sites(seed: int) -> None:
    found, table, lengths = drawn(seed)
    np.testing.assert_array_equal(found.table, table)
    assert found.most == table.max(initial=0.0, where=np.isfinite(table))
    assert found.is_free == (not table.any())
    rows, columns = np.array([4, 0, 6]), np.array([1, 5])
    for mine, expected in zip(found.at(lengths), split(table, lengths), strict=True):
        np.testing.assert_allclose(whole(mine), expected, rtol=1e-9, atol=1e-12)
        some_of = some(mine, rows, columns)
        np.testing.assert_array_equal(some_of, whole(mine)[rows][:, columns])
        assert mine.item(6, 1) == some_of[2, 0]
    paid = whole(found.times(2.5))
    np.testing.assert_array_equal(paid, np.where(np.isfinite(table), 2.5, 1.0) * table)


@pytest.mark.parametrize("seed", range(20))
def test_the_least_of_classes_is_that_of_their_pairs_that_have_a_way(seed: int) -> None:
    """Of pairs without one, which no choice has, nothing is hidden."""
    found, table, lengths = drawn(seed)
    rng = np.random.default_rng(seed)
    rows, columns = [np.append(rng.integers(0, 3, n - 3), np.arange(3)) for n in found.shape]
    paid, hidden = split(table, lengths)
    for mine, every in zip(found.at(lengths), (paid, hidden), strict=True):
        least = np.full((3, 3), np.inf)
        np.minimum.at(least, (rows[:, None], columns), np.where(np.isfinite(table), every, np.inf))
        if every is hidden:
            least[np.isinf(least)] = 0.0
        np.testing.assert_allclose(mine.least(rows, columns, (3, 3)), least, rtol=1e-9, atol=1e-12)


def test_equal_sites_are_one_object() -> None:
    found, _, lengths = drawn(0)
    assert found.at(lengths) is found.at((*lengths,))
    assert found.at(lengths) is not found.at(((0.5, 1.0),))
