"""The portfolio: as good as brute force, truthful about bounds, stops and what does not fit."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.common.stop import Stop
from planner.solver.budget import DEFAULT, QUICK
from planner.solver.exact.bucket_elimination import Tables
from planner.solver.exact.ilp import Exact
from planner.solver.problem import Edge, IntraProblem, IntraSolution, Point
from planner.solver.solve import SolveOptions, solve
from tests.helpers_exhaustive import usual
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.problems import instance, large

BLOCKS = [range(start, start + 100) for start in range(0, 1000, 100)]
TOLERANCE = SolveOptions().tolerance


def assert_truthful(problem: IntraProblem, found: IntraSolution, best: IntraSolution) -> None:
    """What holds of any answer, however it was found."""
    assert found.bound <= best.cost * (1 + 1e-9)
    if found.choice:
        assert problem.is_feasible(found.choice)
        assert found.cost == problem.cost(found.choice)
        assert found.bound <= found.cost
    if found.stop is Stop.OPTIMAL and problem.size:
        assert found.cost <= best.cost * (1 + 1.01 * TOLERANCE)
    if found.stop is Stop.INFEASIBLE:
        assert not best.choice
    if found.stop is Stop.GAP and found.choice:
        assert found.cost - found.bound > TOLERANCE * found.cost


def test_a_programme_too_large_to_write_is_not_written() -> None:
    """Choices off disturbed messages are tried instead; what they do not show stays open."""
    options, open_ = SolveOptions(budget=replace(DEFAULT, written_columns=-1)), 0
    for seed in range(100):
        problem = instance(seed, nodes=(3, 9), most=500)
        best, found = brute_force(problem), solve(problem, options)
        assert_truthful(problem, found, best)
        open_ += bool(best.choice) and not found.choice
    assert open_ < 5


def test_a_bound_is_known_however_little_time_there_was() -> None:
    late = 0
    for seed in range(100):
        problem = instance(seed, nodes=(2, 9), most=1000)
        best, found = brute_force(problem), solve(problem, SolveOptions(time_limit_s=0.0))
        assert_truthful(problem, found, best)
        assert -np.inf < problem.least_cost() <= best.cost
        if found.stop is not Stop.OPTIMAL:
            assert found.bound >= problem.least_cost()
        late += found.stop is Stop.TIME_LIMIT
    assert late


@pytest.mark.parametrize("seeds", usual(BLOCKS, BLOCKS[:5]), ids=str)
def test_equals_brute_force(seeds: range) -> None:
    for seed in seeds:
        problem = instance(seed, nodes=(0, 9), most=1000)
        best, found = brute_force(problem), solve(problem)
        assert found.stop is best.stop, seed
        assert found.cost <= best.cost * (1 + 1.01 * TOLERANCE), seed
        assert_truthful(problem, found, best)


@settings(max_examples=100)
@given(seed=st.integers(10**6, 10**9), limit=st.integers(-1, 120))
def test_any_limit(seed: int, limit: int) -> None:
    problem = replace(instance(seed, nodes=(1, 7), most=500), limit=float(limit))
    best, found = brute_force(problem), solve(problem)
    assert found.stop is best.stop
    assert_truthful(problem, found, best)


def test_without_the_exact_solver_it_stays_truthful() -> None:
    options = SolveOptions(budget=replace(DEFAULT, exact=False))
    missed = far = 0
    for seed in range(200):
        problem = instance(seed, most=500)
        best, found = brute_force(problem), solve(problem, options)
        assert_truthful(problem, found, best)
        missed += bool(best.choice) and not found.choice
        far += bool(found.choice) and found.cost > 1.05 * best.cost
    assert missed <= 1
    assert far <= 2


@pytest.mark.parametrize("seed", range(0, 100, 5))
def test_the_same_answer_every_time(seed: int) -> None:
    tables = Tables()
    for number in range(seed, seed + 5):
        problem = instance(number)
        first = solve(problem)
        assert solve(problem) == first
        assert solve(instance(number)) == first
        assert solve(problem, None, tables).cost == pytest.approx(first.cost, rel=TOLERANCE)


def test_nothing_to_choose() -> None:
    empty = IntraProblem((), (), (), (), 1.0)
    assert solve(empty) == IntraSolution((), 0.0, 0.0, Stop.OPTIMAL)
    one = IntraProblem((np.array([3.0]),), (), (np.array([5.0]),), ((0, 1),), 5.0)
    assert solve(one) == IntraSolution((0,), 3.0, 3.0, Stop.OPTIMAL)
    assert solve(replace(one, limit=4.0)).stop is Stop.INFEASIBLE
    assert solve(replace(one, node_cost=(np.array([np.inf]),))).stop is Stop.INFEASIBLE


@pytest.mark.parametrize("limit_s", usual([0.2, 1.0], [0.2]))
def test_the_time_limit_is_kept(limit_s: float) -> None:
    """On a busy machine the limit may pass before anything is found."""
    problem = large(1)
    start = time.monotonic()
    found = solve(problem, SolveOptions(time_limit_s=limit_s))
    seconds = time.monotonic() - start
    assert seconds < limit_s + 10.0
    assert found.stop is (Stop.GAP if seconds < limit_s else Stop.TIME_LIMIT)
    if found.choice:
        assert problem.is_feasible(found.choice)
        assert found.bound < found.cost
    else:
        assert found.stop is Stop.TIME_LIMIT


@pytest.mark.exhaustive
def test_a_problem_that_is_too_large_for_the_exact_solver() -> None:
    problem = large(2, nodes=120, options=14)
    found = solve(problem, SolveOptions(budget=replace(DEFAULT, rounds=5)))
    assert found.stop is Stop.GAP
    assert problem.is_feasible(found.choice)
    least = [int(np.argmin(use)) for use in problem.usage]
    assert found.cost < 0.8 * problem.cost(least)


def test_an_interrupt_ends_it_with_the_best_so_far() -> None:
    problem = large(1)

    def interrupt(point: Point) -> None:
        if math.isfinite(point[1]) and math.isfinite(point[2]):
            raise KeyboardInterrupt

    found = solve(problem, SolveOptions(interruptible=True), watch=interrupt)
    assert found.stop is Stop.INTERRUPTED
    assert problem.is_feasible(found.choice)
    assert found.bound < found.cost
    with pytest.raises(KeyboardInterrupt):
        solve(problem, SolveOptions(), watch=interrupt)


def test_costs_of_any_size() -> None:
    for scale in (1e-12, 1e6, 1e15):
        for seed in range(30):
            problem = instance(seed)
            scaled = replace(
                problem,
                node_cost=tuple(c * scale for c in problem.node_cost),
                edges=tuple(replace(e, table=e.cost * scale) for e in problem.edges),
            )
            best = brute_force(scaled)
            found = solve(scaled, SolveOptions(tolerance=0.0))
            assert found.stop in (best.stop, Stop.GAP), (scale, seed)
            assert found.cost == pytest.approx(best.cost, rel=1e-8), (scale, seed)


def test_the_history_ends_with_the_answer() -> None:
    found = solve(large(1, nodes=60), SolveOptions(time_limit_s=1.0))
    times, costs, bounds = zip(*found.trace, strict=True)
    assert list(times) == sorted(times)
    assert all(a >= b for a, b in itertools.pairwise(costs))
    assert all(a <= b for a, b in itertools.pairwise(bounds))
    assert costs[-1] == pytest.approx(found.cost)
    assert found.seconds >= times[-1]


def test_a_cutoff_ends_the_search_once_nothing_is_below_it() -> None:
    for seed in range(100):
        problem = instance(seed, most=500)
        best = brute_force(problem)
        if not best.choice or best.cost <= 0.0:
            continue
        above = solve(problem, SolveOptions(cutoff=best.cost * 2))
        assert above.cost <= best.cost * (1 + 1.01 * TOLERANCE)
        half = best.cost / 2
        below = solve(problem, SolveOptions(cutoff=half))
        assert half <= below.bound <= best.cost * (1 + 1e-9)


@pytest.mark.parametrize("seeds", usual(BLOCKS[:3], BLOCKS[:1]), ids=str)
def test_a_known_choice_is_where_it_begins(seeds: range) -> None:
    """The best choice stays, a worse one is left, one that is not allowed is not believed."""
    rng = np.random.default_rng(seeds.start)
    for seed in seeds:
        problem = instance(seed, nodes=(1, 9), most=1000)
        best = brute_force(problem)
        some = tuple(int(rng.integers(len(c))) for c in problem.node_cost)
        for start in (some, best.choice):
            found = solve(problem, SolveOptions(start=start))
            assert_truthful(problem, found, best)
            assert found.stop is best.stop, seed
            assert found.cost <= best.cost * (1 + 1.01 * TOLERANCE), seed


def test_it_is_never_worse_than_a_known_choice() -> None:
    """Not even where there is no time to search."""
    problem = replace(large(3), limit=math.inf)
    known = solve(problem, SolveOptions(budget=replace(QUICK, steps=56)))
    options = SolveOptions(start=known.choice, budget=replace(QUICK, steps=1))
    assert solve(problem, options).cost <= known.cost


def halves(sizes: np.ndarray) -> IntraProblem:
    """Which of some sizes are in use at one moment, the others at the next: half of them each."""
    count = len(sizes)
    same = np.where(np.eye(2, dtype=bool), 0.0, np.inf)
    here, there = np.array([[0.0, 1.0], [1.0, 0.0]])
    return IntraProblem(
        (np.array([0.0, 1.0]), np.zeros(2)) * count,
        tuple(Edge(2 * k, 2 * k + 1, same) for k in range(count)),
        tuple(size * use for size in sizes.astype(float) for use in (here, there)),
        ((0, 1), (1, 2)) * count, float(sizes.sum() / 2),
    )  # fmt: skip


def test_no_programme_is_solved_for_what_is_known_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where messages find nothing that fits, the known choice is what there is."""

    def refused(*_: object, **_more: object) -> Exact:
        raise AssertionError("a programme of all options")

    sizes = np.random.default_rng(0).integers(10**6, 10**7, size=19)
    sizes = np.append(sizes, abs(sizes[:10].sum() - sizes[10:].sum()))
    smaller = sizes[:10].sum() < sizes[10:19].sum()
    known = tuple(int(k < 10 or (k == 19 and smaller)) for k in range(20) for _ in range(2))
    problem = halves(sizes)
    options = SolveOptions(budget=replace(DEFAULT, exact_if_memory_binds=False))
    monkeypatch.setattr("planner.solver.solve.solve_ilp", refused)
    with pytest.raises(AssertionError, match="of all options"):
        solve(problem, options)
    found = solve(problem, replace(options, start=known))
    assert problem.is_feasible(found.choice)
    assert found.cost <= problem.cost(known)
