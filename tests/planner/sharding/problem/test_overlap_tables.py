"""Tables of paid and hidden seconds, held against the sum over sites."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel import INTERFERENCE, InChunks
from planner.sharding.problem.overlap_tables import (
    ChunksTable,
    PartsTable,
    lengths_of,
    most_finite,
    split_table,
)


@pytest.mark.parametrize("seed", range(20))
def test_paid_and_hidden_seconds_are_sums_over_sites(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.random((6, 7)) * (rng.random((6, 7)) < 0.8)
    table[rng.random(table.shape) < 0.2] = np.inf
    sites = [
        (float(rng.choice([0.1, rng.random(), 2.0])), int(rng.integers(1, 5)))
        for _ in range(int(rng.integers(1, 12)))
    ]
    paid, hidden = split_table(table, lengths_of(most_finite(table), sites))
    finite = np.where(np.isfinite(table), table, 0.0)
    saved = sum(k * np.minimum(finite / INTERFERENCE, longest_s) for longest_s, k in sites)
    np.testing.assert_allclose(hidden, saved, rtol=1e-9, atol=1e-12)
    expected = np.where(np.isfinite(table), sum(k for _, k in sites) * finite - saved, np.inf)
    np.testing.assert_allclose(paid, expected, rtol=1e-9, atol=1e-12)


def test_what_never_runs_is_forbidden_as_before_and_else_free() -> None:
    table, added = np.array([[1.0, np.inf], [np.inf, 0.5]]), np.full((2, 2), np.inf)
    added[1, 0] = 0.2
    for lengths in ((), ((0.1, 0.0),)):
        paid, hidden = split_table(table, lengths)
        np.testing.assert_array_equal(paid, [[0.0, np.inf], [np.inf, 0.0]])
        paid, hidden = PartsTable(added, np.zeros((2, 2))).at(lengths, table)
        np.testing.assert_array_equal(paid, [[0.0, np.inf], [0.0, 0.0]])
        np.testing.assert_array_equal(hidden, 0.0)


def test_lengths_that_no_reshard_exceeds_are_one() -> None:
    table = np.array([[0.0, 1.0], [np.inf, 0.5]])
    sites = [(0.2, 1), (0.95, 2), (3.0, 4), (0.2, 5)]
    assert lengths_of(most_finite(table), sites) == ((0.2, 6), (np.inf, 6))


def test_exchanges_without_a_way_stay_forbidden_beside_any_compute() -> None:
    """Whether or not they may run in chunks; where all may hide, the compute beside is infinite."""
    table, pair = np.array([[1.0, np.inf], [0.0, 0.5]]), np.array([0])
    two = InChunks(2, np.array([np.inf]), np.array([0.1]), np.array([0.0]))
    chunks = ChunksTable(pair, np.array([1]), (two,))
    lengths = ((0.2, 1.0), (np.inf, 2.0))
    whole = split_table(table, lengths)
    with np.errstate(invalid="ignore"):  # of chunks that there are none of
        paid, hidden = chunks.at(lengths, table, whole)
    np.testing.assert_array_equal(paid, whole[0])
    np.testing.assert_array_equal(hidden, whole[1])
