"""Seconds of what runs in parts or in chunks, and sites by the compute beside them."""

from __future__ import annotations

import numpy as np

from costmodel import InChunks
from planner.sharding.problem.overlap_tables import ChunksTable, PartsTable, lengths_of
from planner.sharding.problem.reshard_seconds import Reshards
from planner.solver.tables import whole


def test_what_never_runs_is_forbidden_as_before_and_else_free() -> None:
    table, added = np.array([[1.0, np.inf], [np.inf, 0.5]]), np.full((2, 2), np.inf)
    added[1, 0] = 0.2
    for lengths in ((), ((0.1, 0.0),)):
        paid, hidden = map(whole, Reshards.of(table).at(lengths))
        np.testing.assert_array_equal(paid, [[0.0, np.inf], [np.inf, 0.0]])
        paid, hidden = PartsTable(added, np.zeros((2, 2))).at(lengths, table)
        np.testing.assert_array_equal(paid, [[0.0, np.inf], [0.0, 0.0]])
        np.testing.assert_array_equal(hidden, 0.0)


def test_lengths_that_no_reshard_exceeds_are_one() -> None:
    table = np.array([[0.0, 1.0], [np.inf, 0.5]])
    sites = [(0.2, 1), (0.95, 2), (3.0, 4), (0.2, 5)]
    assert lengths_of(Reshards.of(table).most, sites) == ((0.2, 6), (np.inf, 6))


def test_exchanges_without_a_way_stay_forbidden_beside_any_compute() -> None:
    """Whether or not they may run in chunks; where all may hide, the compute beside is infinite."""
    table, pair = np.array([[1.0, np.inf], [0.0, 0.5]]), np.array([0])
    two = InChunks(2, np.array([np.inf]), np.array([0.1]), np.array([0.0]))
    chunks = ChunksTable(pair, np.array([1]), (two,))
    lengths = ((0.2, 1.0), (np.inf, 2.0))
    as_whole = [whole(each) for each in Reshards.of(table).at(lengths)]
    with np.errstate(invalid="ignore"):  # of chunks that there are none of
        paid, hidden = chunks.at(lengths, table, (as_whole[0], as_whole[1]))
    np.testing.assert_array_equal(paid, as_whole[0])
    np.testing.assert_array_equal(hidden, as_whole[1])
