"""Message passing: its bound and its slack hold for every choice, on trees it is exact."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.intra.messages import EdgeMessages, Sweeps, Swept, sweep_until
from planner.intra.problem import IntraProblem
from tests.planner.intra.problems import all_costs, instance

BLOCKS = [range(start, start + 100) for start in range(0, 600, 100)]


def without_loops(problem: IntraProblem) -> IntraProblem:
    """Elimination hands on no loops."""
    return replace(problem, edges=tuple(e for e in problem.edges if e.u != e.v))


def rounding(problem: IntraProblem) -> float:
    """What sums of the numbers at hand may be off by."""
    arrays = (*problem.node_cost, *(e.cost for e in problem.edges))
    largest = max((float(a[np.isfinite(a)].max(initial=0.0)) for a in arrays), default=0.0)
    return 1e-12 * largest * (1 + len(arrays)) ** 2


def swept(
    problem: IntraProblem,
    sweeps: int = 30,
    start: EdgeMessages | None = None,
    known: tuple[int, ...] | None = None,
) -> Swept:
    return sweep_until(
        problem.node_cost, problem.edges, sweeps=sweeps, deadline=math.inf, tolerance=0.0,
        start=start, known=known,
    )  # fmt: skip


@pytest.mark.parametrize("seeds", BLOCKS, ids=str)
def test_bound_and_slack_hold_for_every_choice(seeds: range) -> None:
    for seed in seeds:
        problem = without_loops(instance(seed, nodes=(1, 9), memory=False))
        costs, error = all_costs(problem), rounding(problem)
        found = swept(problem, sweeps=seed % 20)
        assert found.bound <= float(costs.min()) + error, seed
        assert found.cost == pytest.approx(float(costs[found.choice]), rel=1e-12), seed
        for v, slack in enumerate(found.slack):
            others = tuple(w for w in range(problem.size) if w != v)
            least = costs.min(axis=others)  # of the choices with each option of v
            assert (found.bound + slack <= least + error).all(), (seed, v)


@pytest.mark.parametrize("seed", range(100))
def test_every_sweep_raises_the_bound(seed: int) -> None:
    problem = without_loops(instance(seed, memory=False))
    state = Sweeps(problem.node_cost, problem.edges)
    bound, _ = state.bound()
    for _ in range(8):
        state.sweep()
        after, _ = state.bound()
        assert after >= bound - rounding(problem)
        bound = after


def test_exact_on_trees() -> None:
    trees = 0
    for seed in range(600):
        problem = without_loops(instance(seed, memory=False))
        pairs = {frozenset((e.u, e.v)) for e in problem.edges}
        if len(pairs) != len(problem.edges) or not _is_forest(problem):
            continue
        best = float(all_costs(problem).min())
        if best == math.inf:
            continue
        trees += 1
        found = swept(problem)
        assert found.bound == pytest.approx(best, rel=1e-9, abs=rounding(problem)), seed
        assert found.cost == pytest.approx(best, rel=1e-9), seed
    assert trees > 50


def _is_forest(problem: IntraProblem) -> bool:
    part = list(range(problem.size))
    for edge in problem.edges:
        a, b = part[edge.u], part[edge.v]
        if a == b:
            return False
        part = [b if p == a else p for p in part]
    return True


@pytest.mark.parametrize("seed", range(60))
def test_goes_on_from_messages_and_from_a_choice(seed: int) -> None:
    problem = without_loops(instance(seed, memory=False))
    first = swept(problem, sweeps=3)
    again = swept(problem, sweeps=0, start=first.messages)
    assert again.bound >= first.bound - rounding(problem)
    costs = all_costs(problem)
    assert again.bound <= float(costs.min()) + rounding(problem)
    best = tuple(int(k) for k in np.unravel_index(int(costs.argmin()), costs.shape))
    assert swept(problem, sweeps=0, known=best).cost == pytest.approx(float(costs.min()))
