"""A problem solved again: its reduction is remembered, and what is found is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.solver.arrays import Flat
from planner.solver.options import GLIMPSE
from planner.solver.reduce import reduction_cache as module
from planner.solver.reduce.reduce import Reduced, reduce
from planner.solver.reduce.reduction_cache import ReductionCache
from planner.solver.solve import SolveOptions, solve
from tests.planner.solver.problems import instance, with_windows


@pytest.fixture
def reductions(monkeypatch: pytest.MonkeyPatch) -> list[Flat]:
    made: list[Flat] = []

    def counted(flat: Flat) -> Reduced:
        made.append(flat)
        return reduce(flat)

    monkeypatch.setattr(module, "reduce", counted)
    return made


@pytest.mark.parametrize("seed", range(30))
def test_after_a_glimpse_the_same_is_found_with_one_reduction(
    seed: int, reductions: list[Flat]
) -> None:
    problem, cache = instance(seed, nodes=(3, 9), most=800), ReductionCache()
    glimpse = solve(problem, GLIMPSE, reductions=cache)
    found = solve(replace(problem), reductions=cache)
    alone = solve(problem)
    assert (found.choice, found.cost, found.bound) == (alone.choice, alone.cost, alone.bound)
    assert glimpse.bound <= found.cost * (1 + 1e-9)
    assert len(reductions) == 1


def test_another_limit_is_another_problem(reductions: list[Flat]) -> None:
    cache = ReductionCache()
    problem = instance(3, nodes=(4, 6), most=300)
    cache.reduced(problem)
    cache.reduced(replace(problem, limit=problem.limit * 1.5))
    assert len(reductions) == 2
    cache.forget()
    cache.reduced(replace(problem, limit=problem.limit * 1.5))
    assert len(reductions) == 3


@pytest.mark.parametrize("seed", range(10))
def test_a_glimpse_of_a_problem_with_windows_reduces_it_too(
    seed: int, reductions: list[Flat]
) -> None:
    problem, cache = with_windows(instance(seed, nodes=(3, 9), most=800), seed), ReductionCache()
    begin = tuple((x.window, 0.3) for x in problem.work)
    once = replace(GLIMPSE, multipliers=begin, budget=replace(GLIMPSE.budget, window_columns=0.0))
    solve(problem, once, reductions=cache)
    solve(replace(problem), replace(once, budget=replace(once.budget, steps=40)), reductions=cache)
    assert len(reductions) == 1
    again = SolveOptions(multipliers=begin)
    found, alone = solve(problem, again, reductions=cache), solve(problem, again)
    assert (found.choice, found.cost, found.bound) == (alone.choice, alone.cost, alone.bound)
