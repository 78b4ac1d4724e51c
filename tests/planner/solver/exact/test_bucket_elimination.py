"""Elimination keeps the optimum, whole or in part, with shared tables and with fewer options."""

from __future__ import annotations

import numpy as np
import pytest

from planner.solver.exact.bucket_elimination import Elimination, Tables
from planner.solver.problem import Edge, IntraProblem
from tests.planner.solver.problems import all_costs, instance

BLOCKS = [range(start, start + 100) for start in range(0, 1500, 100)]


def assert_best(problem: IntraProblem, choice: tuple[int, ...], seed: int) -> None:
    best = float(all_costs(problem).min())
    assert problem.cost(choice) == pytest.approx(best, rel=1e-9, abs=1e-18), seed


@pytest.mark.parametrize("seeds", BLOCKS, ids=str)
def test_equals_brute_force(seeds: range) -> None:
    for seed in seeds:
        problem = instance(seed, nodes=(0, 9), memory=False)
        state = Elimination(problem.node_cost, problem.edges)
        state.run()
        assert not state.alive
        assert_best(problem, state.read_back(), seed)


def test_tables_are_shared_between_problems() -> None:
    tables = Tables()
    for seed in range(300):  # arrays of past problems are gone: identities may come again
        problem = instance(seed, most=500, memory=False)
        state = Elimination(problem.node_cost, problem.edges, tables)
        state.run()
        assert_best(problem, state.read_back(), seed)


def test_stops_before_a_table_that_is_too_large() -> None:
    costs = [np.zeros(3)] * 6
    edges = [Edge(u, v, np.eye(3)) for v in range(6) for u in range(v)]
    state = Elimination(costs, edges)
    state.run(max_entries=3**4)
    assert len(state.alive) == 6
    state.run(max_entries=3**5)
    assert not state.alive
    choice = state.read_back()
    alike = sum(choice[edge.u] == choice[edge.v] for edge in edges)
    assert alike == 3  # six nodes in three colours
