"""The 0/1 programme: equal to brute force, memory included, at any scale of costs and bytes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.intra.brute import brute_force
from planner.intra.ilp import columns, solve_ilp
from planner.intra.problem import Edge, IntraProblem
from planner.stop import Stop
from tests.planner.intra.problems import instance, large

BLOCKS = [range(start, start + 50) for start in range(0, 400, 50)]


@pytest.mark.parametrize("seeds", BLOCKS, ids=str)
def test_equals_brute_force(seeds: range) -> None:
    for seed in seeds:
        problem = instance(seed, nodes=(0, 9), most=1000)
        expected, found = brute_force(problem), solve_ilp(problem, time_limit_s=60)
        assert found.stop is expected.stop, seed
        assert found.cost == pytest.approx(expected.cost, rel=1e-9), seed
        assert found.bound == pytest.approx(expected.cost, rel=1e-7), seed
        if problem.size and expected.choice:
            assert problem.is_feasible(found.choice), seed


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_any_unit_of_memory(scale: float) -> None:
    for seed in range(20):
        problem = instance(seed, most=300)
        scaled = replace(
            problem, usage=tuple(use * scale for use in problem.usage), limit=problem.limit * scale
        )
        assert solve_ilp(scaled, time_limit_s=60).cost == pytest.approx(brute_force(problem).cost)


def pair(limit: float, loop: float = 0.0) -> IntraProblem:
    """Two nodes; option 0 is free and needs one byte."""
    costs, usage = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    edges = (Edge(0, 0, np.array([[loop, -9.0], [-9.0, 0.0]])),)
    return IntraProblem((costs, costs), edges, (usage, usage), ((0, 1),) * 2, limit)


def test_a_limit_is_kept_beyond_the_tolerance_of_the_solver() -> None:
    assert solve_ilp(pair(2.0), time_limit_s=60).cost == 0.0
    found = solve_ilp(pair(2.0 - 1e-8), time_limit_s=60)
    assert found.cost == 1.0
    assert found.stop is Stop.OPTIMAL


def test_a_loop_costs_what_its_diagonal_says() -> None:
    assert solve_ilp(pair(2.0, loop=0.25), time_limit_s=60).cost == 0.25


def test_only_labels_are_considered() -> None:
    for seed in range(40):
        problem = instance(seed, most=300)
        labels = [np.array([len(c) - 1]) if v % 2 else np.arange(len(c))
                  for v, c in enumerate(problem.node_cost)]  # fmt: skip
        barred = replace(
            problem,
            node_cost=tuple(
                np.where(np.isin(np.arange(len(c)), kept), c, np.inf)
                for c, kept in zip(problem.node_cost, labels, strict=True)
            ),
        )
        found = solve_ilp(problem, time_limit_s=60, labels=labels)
        assert found.cost == pytest.approx(brute_force(barred).cost, rel=1e-9), seed


def test_only_what_beats_the_cutoff() -> None:
    for seed in range(40):
        problem = instance(seed, most=300)
        best = brute_force(problem)
        if not best.choice:
            continue
        same = solve_ilp(problem, time_limit_s=60, cutoff=best.cost)
        assert same.choice == ()
        assert same.bound == pytest.approx(best.cost)
        better = solve_ilp(problem, time_limit_s=60, cutoff=best.cost * 1.01 + 1e-6)
        assert better.cost == pytest.approx(best.cost)


def test_out_of_time_it_claims_nothing() -> None:
    problem = instance(0)
    found = solve_ilp(problem, time_limit_s=0.0)
    assert (found.choice, found.cost, found.bound) == ((), math.inf, -math.inf)
    assert found.stop is Stop.TIME_LIMIT
    wide = large(0, nodes=100)
    short = solve_ilp(wide, time_limit_s=1.0)
    least = [int(np.argmin(use)) for use in wide.usage]
    assert short.stop is Stop.TIME_LIMIT
    assert wide.is_feasible(least)
    assert short.bound <= wide.cost(least)
    assert not short.choice or wide.is_feasible(short.choice)


def test_columns_count_each_pair_once() -> None:
    table = np.zeros((2, 2))
    edges = (Edge(0, 1, table), Edge(1, 0, table), Edge(1, 1, table))
    problem = replace(pair(1.0), edges=edges)
    assert columns(problem, [np.arange(2)] * 2) == 2 + 2 + 4
