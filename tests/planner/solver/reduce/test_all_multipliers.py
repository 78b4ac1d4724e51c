"""Problems with windows that are reduced for all multipliers, and with options left out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.solver.mixing import Mixing
from planner.solver.problem import IntraProblem
from planner.solver.reduce.all_multipliers import AllMultipliers
from planner.solver.reduce.options_left import options_left
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.problems import instance, with_windows


def _windows(problem: IntraProblem) -> tuple[int, ...]:
    return tuple(sorted({e.hidden.window for e in problem.edges if e.hidden is not None}))


@pytest.mark.parametrize("seed", range(60))
def test_choices_cost_what_they_cost_in_the_mixed_problem(seed: int) -> None:
    problem = with_windows(instance(seed, most=600), seed)
    windows, random = _windows(problem), np.random.default_rng(seed)
    whole = AllMultipliers(problem, windows)
    if whole.broken:
        assert not brute_force(problem).choice
        return
    for _ in range(3):
        multipliers = tuple(random.random(len(windows)).tolist())
        flat = whole.at(multipliers)
        mixed = Mixing().at(problem, dict(zip(windows, multipliers, strict=True)))
        choice = np.array([random.integers(size) for size in flat.sizes], dtype=np.int64)
        lifted = tuple(whole.map.lift(choice).tolist())
        assert flat.cost_of(choice) == pytest.approx(mixed.cost(lifted), rel=1e-12)
        assert flat.fits(choice) == (mixed.peak(lifted) <= mixed.limit * (1 + 1e-12))
    best = brute_force(mixed)
    found = min(
        flat.cost_of(np.array(choice, dtype=np.int64))
        for choice in itertools.product(*map(range, flat.sizes.tolist()))
        if flat.fits(np.array(choice, dtype=np.int64))
    ) if best.choice else np.inf  # fmt: skip
    assert found == pytest.approx(best.cost, rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_options_left_are_those_of_the_map(seed: int) -> None:
    problem = with_windows(instance(seed, most=600), seed)
    whole = AllMultipliers(problem, _windows(problem))
    if whole.broken:
        return
    flat, random = whole.at((0.0,) * len(_windows(problem))), np.random.default_rng(seed)
    held = random.random(len(flat.cost)) < 0.5
    some = np.array([random.integers(size) for size in flat.sizes], dtype=np.int64)
    held[flat.first[:-1] + some] = True
    left = options_left(problem, whole.options(held))
    choice = tuple(whole.map.lift(some).tolist())
    lowered = left.lowered(choice)
    assert left.lift(lowered) == choice
    assert left.problem.cost(lowered) == problem.cost(choice)
    assert left.problem.peak(lowered) == problem.peak(choice)
    kept = [set(k.tolist()) for k in left.kept]
    for v, options in enumerate(kept):
        for k in set(range(len(problem.node_cost[v]))) - options:
            assert left.lowered((*choice[:v], k, *choice[v + 1 :])) == ()
