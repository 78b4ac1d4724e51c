"""Reductions that hold for all costs, and problems with options left out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.solver.arrays import flatten_problem
from planner.solver.mixing import Mixing
from planner.solver.problem import IntraProblem
from planner.solver.reduce.for_all_costs import reduced_for_all_costs
from planner.solver.reduce.options_left import options_left
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.problems import instance, with_windows


def _mixed(problem: IntraProblem, random: np.random.Generator) -> IntraProblem:
    windows = sorted({e.hidden.window for e in problem.edges if e.hidden is not None})
    return Mixing().at(problem, {w: float(random.random()) for w in windows})


@pytest.mark.parametrize("seed", range(60))
def test_choices_cost_and_use_what_they_did_at_any_multipliers(seed: int) -> None:
    problem, random = with_windows(instance(seed, most=600), seed), np.random.default_rng(seed)
    maps: list[bytes] = []
    for _ in range(3):
        mixed = _mixed(problem, random)
        whole, best = reduced_for_all_costs(flatten_problem(mixed)), brute_force(mixed)
        if whole is None:
            assert not best.choice
            return
        maps.append(whole.map.follows.tobytes() + whole.map.option.tobytes())
        flat, found = whole.flat, np.inf
        for each in itertools.product(*map(range, flat.sizes.tolist())):
            choice = np.array(each, dtype=np.int64)
            if flat.fits(choice):
                found = min(found, flat.cost_of(choice))
        assert found == pytest.approx(best.cost, rel=1e-9)
        choice = np.array([random.integers(size) for size in flat.sizes], dtype=np.int64)
        lifted = tuple(whole.map.lift(choice).tolist())
        assert flat.cost_of(choice) == pytest.approx(mixed.cost(lifted), rel=1e-12)
        assert flat.fits(choice) == (mixed.peak(lifted) <= mixed.limit * (1 + 1e-12))
    assert len(set(maps)) == 1


@pytest.mark.parametrize("seed", range(40))
def test_options_left_are_those_of_the_map(seed: int) -> None:
    problem, random = with_windows(instance(seed, most=600), seed), np.random.default_rng(seed)
    whole = reduced_for_all_costs(flatten_problem(_mixed(problem, random)))
    if whole is None:
        return
    flat = whole.flat
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
