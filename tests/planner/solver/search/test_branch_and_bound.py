"""Branch and bound over who uses memory: its bound holds, and it ends at the best choice."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.solver.arrays import Flat, Ints, flatten_problem
from planner.solver.bound.memory_multipliers import Multipliers
from planner.solver.budget import DEFAULT
from planner.solver.problem import IntraProblem
from planner.solver.reduce.reduce import reduce
from planner.solver.search.branch_and_bound import Branches, heavy_options, payments
from planner.solver.solve import SolveOptions, solve
from tests.helpers_exhaustive import usual
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.flats import best, choices, rounding
from tests.planner.solver.flats import costs as costs_of
from tests.planner.solver.problems import instance, large
from tests.planner.solver.test_solve import assert_truthful

BLOCKS = [range(start, start + 100) for start in range(0, 600, 100)]
STEPS = 12  # of the multipliers before the first split


@cache
def tight(seed: int) -> IntraProblem:
    """A problem whose best choice does not fit, while another may."""
    free = instance(seed, nodes=(3, 7), most=300, memory=False)
    free = replace(free, intervals=tuple((a % 2, a % 2 + 2) for a, _ in free.intervals))
    loose = brute_force(free)
    if not loose.choice:
        return free
    least = free.peak([int(np.argmin(u)) for u in free.usage])
    return replace(free, limit=0.5 * (least + free.peak(loose.choice)))


def priced(seed: int) -> Multipliers | None:
    """A small problem whose memory has a multiplier."""
    flat = reduce(flatten_problem(tight(seed)))
    if flat.broken or not flat.flat.size or not len(flat.flat.limit):
        return None
    multipliers = Multipliers(flat.flat)
    for _ in range(STEPS):
        multipliers.step()
    multipliers.rest()
    return multipliers if multipliers.multiplier.any() else None


def halved(seeds: range) -> Iterator[tuple[int, Multipliers, list[np.ndarray]]]:
    """Problems whose memory has a multiplier, with the options of both sides of a split."""
    for seed in seeds:
        multipliers = priced(seed)
        parts = None if multipliers is None else heavy_options(multipliers)
        if multipliers is not None and parts is not None:
            yield seed, multipliers, list(parts)


class Kept:
    """The best choice that was offered."""

    def __init__(self, flat: Flat) -> None:
        self.flat, self.cost = flat, math.inf

    def wanted(self) -> float:
        return self.cost - 1e-9 * abs(self.cost) if self.cost < math.inf else math.inf

    def offer(self, choice: Ints) -> None:
        assert self.flat.fits(choice)
        self.cost = min(self.cost, self.flat.cost_of(choice))


@pytest.mark.parametrize(
    "seeds",
    usual(BLOCKS, BLOCKS[:1]),
    ids=str,
)
@pytest.mark.parametrize("changed", ["", "subproblem_columns", "whole_columns"])
def test_the_bound_holds_after_every_split(seeds: range, changed: str) -> None:
    """With programmes for small sides, without, and without reducing sides."""
    budget = replace(DEFAULT, **{changed: 0}) if changed else DEFAULT
    split = ended = raised = 0
    for seed in seeds:
        multipliers = priced(seed)
        if multipliers is None:
            continue
        flat = multipliers.flat
        kept, least, error = Kept(flat), best(flat), rounding(flat)
        if multipliers.choice is not None:
            kept.offer(multipliers.choice)
        deadline = time.monotonic() + 600.0
        subproblems = Branches(multipliers, kept.wanted, kept.offer, deadline, budget=budget)
        for _ in range(200):
            if subproblems.ended:
                break
            subproblems.split()
            split += 1
            assert min(subproblems.bound, kept.cost) <= least + error, seed
        assert kept.cost >= least - error
        if subproblems.bound >= kept.wanted():
            assert kept.cost <= least + 2e-9 * abs(least) + error, seed
            ended += math.isfinite(least)
        raised += min(subproblems.bound, kept.cost) > multipliers.best.bound + 10 * error
    assert split > 5
    assert raised > 5
    assert ended > 5 or changed == "whole_columns"  # its sides are never programmes


def test_a_split_shares_the_options_of_one_node() -> None:
    seen = 0
    for _, multipliers, (light, heavy) in halved(range(200)):
        seen += 1
        flat = multipliers.flat
        node = np.repeat(np.arange(flat.size), flat.sizes)
        (split,) = np.unique(node[~light])
        assert (light | heavy).all()
        assert (node[~(light & heavy)] == split).all()
        assert (~(light & heavy))[node == split].all()
        paid = payments(flat, multipliers.multiplier)[int(split)]
        assert paid[light[node == split]].max() < paid[heavy[node == split]].min()
    assert seen > 20


def test_sides_of_a_whole_problem_leave_out_what_is_not_theirs() -> None:
    """Two sides that are not reduced: each one's bound holds for the choices on it."""
    seen = 0
    for seed, multipliers, parts in halved(range(150)):
        flat, every = multipliers.flat, choices(multipliers.flat)
        cost, before = costs_of(flat), multipliers.best.bound
        if not np.isfinite(cost).any():
            continue
        seen += 1
        for held in parts:
            subproblem = multipliers.with_costs(
                np.where(held, 0.0, float(cost[np.isfinite(cost)].max()))
            )
            assert subproblem.best.bound >= before - rounding(flat)
            for _ in range(6):
                subproblem.step()
            mine = held[flat.first[:-1] + every].all(axis=1)
            least = cost[mine].min(initial=math.inf)
            assert subproblem.best.bound <= least + rounding(flat), seed
    assert seen > 20


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "seeds",
    usual(BLOCKS[:3], BLOCKS[:1]),
    ids=str,
)
def test_the_portfolio_equals_brute_force_where_it_splits(
    seeds: range, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without programmes for all that is left, the gap is closed by splitting."""
    budget = replace(DEFAULT, exact_columns=0, subproblem_columns=0)
    if whole:
        budget = replace(budget, whole_columns=-1)
        monkeypatch.setattr("planner.solver.solve.WIDE_GAP", 0.0)
    options = SolveOptions(budget=budget)
    far = 0
    for seed in seeds:
        problem = tight(seed)
        least, found = brute_force(problem), solve(problem, options)
        assert_truthful(problem, found, least)
        assert bool(found.choice) == bool(least.choice), seed
        far += bool(found.choice) and found.cost > least.cost * 1.001
    assert far <= 2


def test_splitting_closes_a_gap_that_multipliers_leave() -> None:
    """Few nodes use nearly all of one moment: a knapsack, where multipliers alone prove little."""
    rng = np.random.default_rng(0)
    free = large(5, nodes=40, options=3)
    usage = tuple(np.array([0.0, 1.0, 2.0]) * size for size in rng.uniform(20, 60, 40))
    problem = IntraProblem(
        tuple(np.array([2.0, 1.0, 0.0]) * u[1] / 20 + c for u, c in
              zip(usage, free.node_cost, strict=True)),
        free.edges, usage, ((0, 1),) * 40, 333.0,
    )  # fmt: skip
    options = [SolveOptions(budget=replace(DEFAULT, rounds=n)) for n in (60, 0)]
    with_, without = (solve(problem, each) for each in options)
    assert with_.bound <= with_.cost
    assert problem.is_feasible(with_.choice)
    assert with_.gap <= without.gap
    assert solve(problem, options[0]) == with_
