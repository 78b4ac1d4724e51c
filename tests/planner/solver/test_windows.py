"""Windows of overlap, held against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.common.stop import Stop
from planner.solver.budget import DEFAULT, QUICK, THOROUGH, Budget
from planner.solver.exact.window_programme import combined
from planner.solver.mixing import Mixing
from planner.solver.problem import Edge, Hidden, IntraProblem, Work
from planner.solver.reduce.options_left import options_left
from planner.solver.solve import SolveOptions, solve
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.problems import instance, with_windows

PROOF = SolveOptions(tolerance=0.0)
NARROWED = replace(DEFAULT, narrowed_pairs=0.0)  # as of wide problems


# 480 problems; 4,000 with `-m exhaustive`.
@pytest.mark.parametrize(("block", "budget"), [
    *((block, DEFAULT) for block in range(6)), *((block, NARROWED) for block in range(6, 12)),
    *(pytest.param(block, (DEFAULT, NARROWED)[block % 2], marks=pytest.mark.exhaustive)
      for block in range(12, 112)),
])  # fmt: skip
def test_small_problems_are_solved_to_the_proven_optimum(block: int, budget: Budget) -> None:
    for seed in range(40 * block, 40 * (block + 1)):
        problem = with_windows(instance(seed, most=600), seed)
        best, found = brute_force(problem), solve(problem, replace(PROOF, budget=budget))
        if not best.choice:
            assert found.stop is Stop.INFEASIBLE, seed
            continue
        assert problem.is_feasible(found.choice), seed
        assert found.cost == problem.cost(found.choice), seed
        assert found.bound <= best.cost * (1 + 1e-9) + 1e-12, seed
        assert found.cost >= best.cost * (1 - 1e-9) - 1e-12, seed
        assert found.cost <= best.cost * (1 + 1e-9) + 1e-12, seed
        assert found.stop is Stop.OPTIMAL, seed


@pytest.mark.parametrize("seed", range(20))
def test_mixed_problems_are_bounds_at_any_multipliers(seed: int) -> None:
    problem = with_windows(instance(seed, most=600), seed)
    rng, windows = np.random.default_rng(seed), [x.window for x in problem.work]
    mixed = Mixing().at(problem, {w: float(rng.random()) for w in sorted(windows)})
    assert brute_force(mixed).cost <= brute_force(problem).cost + 1e-12


def test_all_communication_hides_behind_enough_work() -> None:
    cost = np.array([[0.3, 0.2], [0.2, 0.1]])
    edge = Edge(0, 1, cost, Hidden(0, 10.0 * cost))
    work = tuple(Work(v, 0, np.array([2.0, 1.0])) for v in (0, 1))
    costs = (np.array([2.0, 1.0]),) * 2
    problem = IntraProblem(costs, (edge,), (np.zeros(2),) * 2, ((0, 0),) * 2, np.inf, work)
    found = solve(problem, PROOF)
    assert (found.choice, found.stop) == ((1, 1), Stop.OPTIMAL)
    assert found.cost == pytest.approx(2.1)
    assert problem.excess((0, 0)) == {0: pytest.approx(-1.0)}
    short = replace(edge, hidden=Hidden(0, np.minimum(10.0 * cost, 0.5)))
    assert replace(problem, edges=(short,)).excess((0, 0)) == {0: pytest.approx(-3.5)}


def unbalanced() -> IntraProblem:
    """(work, communication) = (10, 0), (0, 10) or (6, 6): half of each of the first two is 5."""
    cost, same = np.array([10.0, 0.0, 6.0]), np.eye(3, dtype=bool)
    sent = np.array([0.0, 10.0, 6.0])
    hidden = Hidden(0, np.where(same, sent[:, None], 0.0))
    edge = Edge(0, 1, np.where(same, 1e-6 * sent[:, None], np.inf), hidden)
    return IntraProblem(
        (cost, np.zeros(3)), (edge,), (np.zeros(3),) * 2, ((0, 0),) * 2, np.inf,
        (Work(0, 0, cost),),
    )  # fmt: skip


def test_no_multiplier_proves_what_no_mixture_reaches() -> None:
    alone = replace(DEFAULT, combined_columns=0.0)
    found = solve(unbalanced(), replace(PROOF, budget=alone))
    assert 4.5 < found.bound <= 5.0 * (1 + 1e-3)
    assert found.cost <= 10.0 * (1 + 1e-3)
    assert found.stop is Stop.GAP


def test_the_programme_proves_what_no_multiplier_does() -> None:
    found = solve(unbalanced(), PROOF)
    assert (found.choice, found.stop) == ((2, 2), Stop.OPTIMAL)
    assert found.bound == pytest.approx(6.000006, rel=1e-9)


@pytest.mark.parametrize("seed", [1959, 3425])  # what is left of their costs is rounding
def test_windows_are_weighed_where_all_other_costs_cancel(seed: int) -> None:
    problem = with_windows(instance(seed, most=600), seed)
    found, best = solve(problem, PROOF), brute_force(problem)
    assert found.stop is Stop.OPTIMAL
    assert found.bound == pytest.approx(best.cost, rel=1e-9)


@pytest.mark.parametrize("seeds", [range(300, 320), range(320, 340)], ids=str)
def test_options_of_known_choices_are_combined_at_best(seeds: range) -> None:
    better = 0
    for seed in seeds:
        problem = with_windows(instance(seed, nodes=(4, 7), most=600), seed)
        rng, best = np.random.default_rng(seed), brute_force(problem)
        if not best.choice:
            continue
        some = [tuple(int(rng.integers(len(c))) for c in problem.node_cost) for _ in range(2)]
        first = np.cumsum([0, *map(len, problem.node_cost)])
        held = np.zeros(int(first[-1]), dtype=np.bool_)
        for choice in (*some, best.choice):
            held[first[:-1] + np.array(choice)] = True
        known = 2.0 * best.cost + 1.0  # above it
        multipliers = {x.window: float(rng.random()) for x in problem.work}
        found = combined(problem, held, known, multipliers, SolveOptions())
        assert problem.cost(found.choice) == pytest.approx(best.cost, rel=1e-9), seed
        within = brute_force(options_left(problem, held).problem)
        assert found.bound <= within.cost * (1 + 1e-9) + 1e-12, seed
        none = combined(problem, held, best.cost * (1 - 1e-6), multipliers, SolveOptions())
        assert not none.choice, seed
        better += 1
    assert better > 5


def test_more_solves_prove_more() -> None:
    few, many = SolveOptions(budget=QUICK), SolveOptions(budget=THOROUGH)
    proved = [0, 0]
    for seed in range(200, 260):
        problem = with_windows(instance(seed, most=600), seed)
        for n, options in enumerate((few, many)):
            proved[n] += solve(problem, options).stop is Stop.OPTIMAL
    assert proved[1] > proved[0]
