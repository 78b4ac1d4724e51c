"""Problems solved by classes of options, held against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.common.stop import Stop
from planner.solver.budget import DEFAULT
from planner.solver.option_classes import Classes, one_for_each_class
from planner.solver.problem import Edge, Hidden, IntraProblem
from planner.solver.solve import SolveOptions, solve
from tests.helpers_exhaustive import usual
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.problems import instance, with_windows

# every problem is solved by its classes, as wide ones are
BY_CLASSES = SolveOptions(tolerance=0.0, budget=replace(DEFAULT, narrowed_pairs=-1.0))


def classes_of(problem: IntraProblem, seed: int) -> Classes:
    """Classes drawn at random, numbered without gaps."""
    rng = np.random.default_rng(seed)
    drawn = (rng.integers(0, max(1, (len(c) + 1) // 2), len(c)) for c in problem.node_cost)
    return tuple(np.unique(each, return_inverse=True)[1] for each in drawn)


def doubled(problem: IntraProblem) -> tuple[IntraProblem, Classes]:
    """A problem whose every option is there twice, and these pairs as classes."""
    edges = tuple(
        Edge(
            e.u, e.v, np.tile(e.cost, (2, 2)),
            None if (h := e.hidden) is None else Hidden(h.window, np.tile(h.seconds, (2, 2))),
        )
        for e in problem.edges
    )  # fmt: skip
    twice = replace(
        problem,
        node_cost=tuple(np.tile(c, 2) for c in problem.node_cost),
        edges=edges,
        usage=tuple(np.tile(use, 2) for use in problem.usage),
        work=tuple(replace(x, seconds=np.tile(x.seconds, 2)) for x in problem.work),
    )
    return twice, tuple(np.tile(np.arange(len(c)), 2) for c in problem.node_cost)


@pytest.mark.parametrize("block", usual(range(3), [0]))
@pytest.mark.parametrize("windows", [False, True])
def test_bound_is_below_the_optimum_and_the_choice_above(block: int, windows: bool) -> None:
    gaps: list[float] = []
    for seed in range(40 * block, 40 * (block + 1)):
        problem = instance(seed, most=400)
        problem = with_windows(problem, seed) if windows else problem
        classes = classes_of(problem, seed)
        best = brute_force(problem)
        relaxed = brute_force(one_for_each_class(problem, classes))
        found = solve(problem, BY_CLASSES, classes=classes)
        if not best.choice:
            assert found.stop is Stop.INFEASIBLE, seed
            continue
        assert relaxed.cost <= best.cost * (1 + 1e-9) + 1e-12, seed
        assert found.bound <= best.cost * (1 + 1e-9) + 1e-12, seed
        assert problem.is_feasible(found.choice), seed
        assert found.cost == problem.cost(found.choice), seed
        if found.stop is Stop.OPTIMAL:
            assert found.cost <= best.cost * (1 + 1e-6) + 1e-12, seed
        gaps.append(found.cost / best.cost - 1.0 if best.cost > 0.0 else 0.0)
    assert np.median(gaps) <= 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_the_classes_of_equal_options_lose_nothing(seed: int) -> None:
    problem = with_windows(instance(seed, most=400), seed)
    twice, classes = doubled(problem)
    alone, found = (
        solve(problem, SolveOptions(tolerance=0.0)),
        solve(twice, BY_CLASSES, classes=classes),
    )
    assert len(found.choice) == len(alone.choice)
    if alone.choice:
        assert found.bound == pytest.approx(alone.bound, rel=1e-6, abs=1e-12)
