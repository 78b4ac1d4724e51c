"""Elimination with labels, held against brute force and the 0/1 programme."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.common.stop import Stop
from planner.solver.arrays import Flat, flatten_problem
from planner.solver.exact import window_labels
from planner.solver.exact.ilp import solve_ilp
from planner.solver.exact.window_labels import best_of_labels
from planner.solver.exact.window_programme import excess_of, windows_of
from planner.solver.problem import Edge, Hidden, IntraProblem, Work
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.problems import instance, with_windows


def flats(problem: IntraProblem) -> tuple[Flat, list[Flat]]:
    return flatten_problem(replace(problem, work=())), excess_of(problem)


def cost_of(choice: np.ndarray, flat: Flat, excess: list[Flat]) -> float:
    return flat.cost_of(choice) + sum(max(0.0, each.cost_of(choice)) for each in excess)


def balanced(seed: int, count: int) -> IntraProblem:
    """A tree with some more edges, whose windows hide about half of what is sent."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, count)
    pairs = [(int(rng.integers(max(0, v - 3), v)), v) for v in range(1, count)]
    pairs += [(v, v + 4) for v in range(0, count - 4, 5)]
    costs = tuple(rng.random(int(k)) for k in sizes)
    edges: list[Edge] = []
    for n, (u, v) in enumerate(pairs):
        shape = int(sizes[u]), int(sizes[v])
        cost = np.where(rng.random(shape) < 0.1, np.inf, 0.2 * rng.random(shape))
        edges.append(Edge(u, v, cost, Hidden(n % 2, np.where(np.isfinite(cost), 0.5, 0.0)
                                             * rng.random(shape))))  # fmt: skip
    work = tuple(Work(v, v % 2, 0.5 * costs[v]) for v in range(count))
    usage = tuple(np.zeros(int(k)) for k in sizes)
    return IntraProblem(costs, tuple(edges), usage, ((0, 0),) * count, np.inf, work)


@pytest.mark.parametrize("block", range(8))
def test_the_best_choice_is_that_of_brute_force(block: int) -> None:
    fitting = 0
    for seed in range(40 * block, 40 * (block + 1)):
        problem = with_windows(instance(seed, most=600, memory=False), seed)
        rng, best = np.random.default_rng(seed), brute_force(problem)
        multipliers = [float(rng.random()) for _ in windows_of(problem)]
        if not problem.size or not best.choice:
            continue
        flat, excess = flats(problem)
        found = best_of_labels(flat, excess, 1.5 * best.cost + 1.0, multipliers)
        assert found is not None, seed
        assert found.choice is not None, seed
        assert found.stop is Stop.OPTIMAL, seed
        assert found.bound == pytest.approx(best.cost, rel=1e-9, abs=1e-15), seed
        assert problem.cost(tuple(found.choice.tolist())) == pytest.approx(found.bound), seed
        none = best_of_labels(flat, excess, best.cost * (1 - 1e-9), multipliers)
        assert none is not None, seed
        assert none.stop is Stop.INFEASIBLE, seed
        fitting += 1
    assert fitting > 20


@pytest.mark.parametrize("seed", range(6))
def test_the_best_choice_is_that_of_the_programme(seed: int) -> None:
    flat, excess = flats(balanced(seed, 20))
    exact = solve_ilp(flat, excess, time_limit_s=60.0)
    for multipliers in ([0.0, 0.0], [0.5, 0.5], [1.0, 0.3]):
        found = best_of_labels(flat, excess, 1.02 * exact.bound, multipliers)
        assert found is not None
        assert found.choice is not None
        assert found.bound == pytest.approx(exact.bound, rel=1e-7)
        assert cost_of(found.choice, flat, excess) == pytest.approx(found.bound, rel=1e-9)


def test_what_is_too_large_is_left_to_the_programme(monkeypatch: pytest.MonkeyPatch) -> None:
    flat, excess = flats(balanced(0, 20))
    cutoff = 1.02 * solve_ilp(flat, excess, time_limit_s=60.0).bound
    assert best_of_labels(flat, excess, cutoff, [0.5, 0.5]) is not None
    for name in ("MOST_CELLS", "MOST_LABELS", "MOST_PAIRS", "ALL_PAIRS", "MOST_ENTRIES"):
        with monkeypatch.context() as less:
            less.setattr(window_labels, name, 2)
            assert best_of_labels(flat, excess, cutoff, [0.5, 0.5]) is None, name


def test_problems_with_memory_limits_are_left_to_the_programme() -> None:
    problem = balanced(0, 12)
    usage = tuple(np.arange(len(cost)) + 1.0 for cost in problem.node_cost)
    short = replace(problem, usage=usage, intervals=((0, 1),) * 12, limit=20.0)
    assert best_of_labels(*flats(short), np.inf, [0.5, 0.5]) is None
