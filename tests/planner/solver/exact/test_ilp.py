"""The 0/1 programme: equal to brute force, memory included, at any scale of costs and bytes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.common.stop import Stop
from planner.solver.arrays import flatten_problem
from planner.solver.exact.ilp import Exact, columns, solve_ilp
from planner.solver.problem import Edge, IntraProblem
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.problems import instance, large

BLOCKS = [range(start, start + 50) for start in range(0, 400, 50)]


def exactly(problem: IntraProblem, time_limit_s: float = 60.0) -> Exact:
    return solve_ilp(flatten_problem(problem), time_limit_s=time_limit_s)


def cost(problem: IntraProblem, found: Exact) -> float:
    return math.inf if found.choice is None else problem.cost(found.choice.tolist())


@pytest.mark.parametrize("seeds", BLOCKS, ids=str)
def test_equals_brute_force(seeds: range) -> None:
    for seed in seeds:
        problem = instance(seed, nodes=(0, 9), most=1000)
        expected, found = brute_force(problem), exactly(problem)
        assert found.stop is expected.stop, seed
        assert found.bound == pytest.approx(expected.cost, rel=1e-7), seed
        assert cost(problem, found) == pytest.approx(expected.cost, rel=1e-9), seed
        assert found.choice is None or problem.is_feasible(found.choice.tolist()), seed


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_any_unit_of_memory(scale: float) -> None:
    for seed in range(20):
        problem = instance(seed, most=300)
        scaled = replace(
            problem, usage=tuple(use * scale for use in problem.usage), limit=problem.limit * scale
        )
        assert cost(scaled, exactly(scaled)) == pytest.approx(brute_force(problem).cost)


def pair(limit: float, loop: float = 0.0) -> IntraProblem:
    """Two nodes; option 0 is free and needs one byte."""
    costs, usage = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    edges = (Edge(0, 0, np.array([[loop, -9.0], [-9.0, 0.0]])),)
    return IntraProblem((costs, costs), edges, (usage, usage), ((0, 1),) * 2, limit)


def test_a_limit_is_kept_beyond_the_tolerance_of_the_solver() -> None:
    assert cost(pair(2.0), exactly(pair(2.0))) == 0.0
    found = exactly(pair(2.0 - 1e-8))
    assert cost(pair(2.0 - 1e-8), found) == 1.0
    assert found.stop is Stop.OPTIMAL


def test_a_loop_costs_what_its_diagonal_says() -> None:
    assert exactly(pair(2.0, loop=0.25)).bound == 0.25


def test_out_of_time_it_claims_nothing() -> None:
    found = exactly(instance(0), time_limit_s=0.0)
    assert (found.choice, found.bound, found.stop) == (None, -math.inf, Stop.TIME_LIMIT)
    wide = large(0)
    short = exactly(wide, time_limit_s=1.0)
    least = [int(np.argmin(use)) for use in wide.usage]
    assert short.stop is Stop.TIME_LIMIT
    assert wide.is_feasible(least)
    assert short.bound <= wide.cost(least)
    assert short.choice is None or wide.is_feasible(short.choice.tolist())


def test_columns_count_options_and_pairs() -> None:
    table = np.zeros((2, 2))
    edges = (Edge(0, 1, table), Edge(1, 0, table), Edge(1, 1, table))
    assert columns(flatten_problem(replace(pair(1.0), edges=edges))) == 2 + 2 + 4 + 4


def test_a_programme_that_is_stopped_after_so_many_questions_ends_where_it_did_before() -> None:
    """No clock enters: HiGHS asks at fixed places, and what it has found by then is the same."""
    problem = large(1, nodes=18, options=4)
    least = problem.peak([int(np.argmin(use)) for use in problem.usage])
    most = problem.peak([int(np.argmin(costs)) for costs in problem.node_cost])
    flat = flatten_problem(replace(problem, limit=least + 0.4 * (most - least)))
    ends: list[Stop] = []
    for work in (0.0, 1e4, 2e4, math.inf):
        first, again = (solve_ilp(flat, time_limit_s=60.0, work=work) for _ in range(2))
        assert (first.stop, first.bound) == (again.stop, again.bound)
        assert (first.choice is None) == (again.choice is None)
        assert first.choice is None or (first.choice == again.choice).all()
        ends.append(first.stop)
    assert ends[0] is Stop.GAP
    assert ends[-1] is Stop.OPTIMAL
