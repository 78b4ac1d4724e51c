"""Tables that are computed where they are read, held against the same tables as arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.solver.arrays import flatten_problem
from planner.solver.budget import DEFAULT
from planner.solver.option_classes import one_for_each_class
from planner.solver.problem import Edge, Floats, Hidden, IntraProblem
from planner.solver.reduce.options_left import options_left
from planner.solver.solve import SolveOptions, solve
from planner.solver.tables import Deferred, Ints, Mixed, Turned, lowest, some, whole
from tests.planner.solver.problems import instance, with_windows


class Kept(Deferred):
    """A table that is an array after all."""

    def __init__(self, array: Floats) -> None:
        super().__init__((array.shape[0], array.shape[1]))
        self.array = array

    def part(self, rows: Ints | None = None, columns: Ints | None = None) -> Floats:
        return some(self.array, rows, columns).copy()


def deferred(problem: IntraProblem) -> IntraProblem:
    """The problem with every table computed where it is read."""
    edges = tuple(
        Edge(e.u, e.v, Kept(e.cost), (h := e.hidden) and Hidden(h.window, Kept(h.seconds)))
        for e in problem.edges
    )
    return replace(problem, edges=edges)


@pytest.mark.parametrize("narrowed_pairs", [DEFAULT.narrowed_pairs, -1.0])
@pytest.mark.parametrize("windows", [False, True])
def test_a_problem_has_the_solution_that_it_has_as_arrays(
    windows: bool, narrowed_pairs: float
) -> None:
    """All at once, and by classes of options."""
    options = SolveOptions(budget=replace(DEFAULT, narrowed_pairs=narrowed_pairs))
    for seed in range(60):
        problem = instance(seed)
        problem = with_windows(problem, seed) if windows else problem
        classes = tuple(np.arange(len(c)) // 2 for c in problem.node_cost)
        asked = classes if narrowed_pairs < 0 else None
        found = solve(deferred(problem), options, classes=asked)
        assert found == solve(problem, options, classes=asked)
        assert not found.choice or deferred(problem).cost(found.choice) == found.cost


def test_every_reader_finds_the_entries_of_the_array() -> None:
    for seed in range(20):
        problem = with_windows(instance(seed), seed)
        other, random = deferred(problem), np.random.default_rng(seed)
        np.testing.assert_array_equal(flatten_problem(other).pool, flatten_problem(problem).pool)
        assert other.least_cost() == problem.least_cost()
        classes = tuple(np.arange(len(c)) // 2 for c in problem.node_cost)
        held = [random.random(len(c)) < 0.5 for c in problem.node_cost]
        for some_of in held:
            some_of[0] = True
        mask = np.concatenate(held)
        pairs = [
            [one_for_each_class(each, classes) for each in (other, problem)],
            [options_left(each, mask).problem for each in (other, problem)],
        ]
        for mine, expected in pairs:
            for a, b in zip(mine.edges, expected.edges, strict=True):
                np.testing.assert_array_equal(a.cost, b.cost)
                if a.hidden is not None and b.hidden is not None:
                    np.testing.assert_array_equal(a.hidden.seconds, b.hidden.seconds)


def test_sums_and_turned_tables() -> None:
    random = np.random.default_rng(0)
    a, b = random.random((3, 4)), random.random((3, 4))
    a[1, 2] = np.inf
    mixed, turned = Mixed(Kept(a), 0.3, Kept(b)), Turned(Kept(a))
    rows, columns = np.array([2, 1]), np.array([0, 2, 3])
    np.testing.assert_array_equal(whole(mixed), a + 0.3 * b)
    np.testing.assert_array_equal(some(mixed, rows, columns), (a + 0.3 * b)[rows][:, columns])
    assert (mixed.shape, turned.shape, mixed.size) == ((3, 4), (4, 3), 12)
    np.testing.assert_array_equal(whole(turned), a.T)
    np.testing.assert_array_equal(some(turned, columns, rows), a.T[columns][:, rows])
    np.testing.assert_array_equal(some(turned, None, rows), a.T[:, rows])
    assert lowest(turned) == lowest(a) == a.min()
    assert turned.item(2, 1) == turned.item(2, 1) == np.inf
