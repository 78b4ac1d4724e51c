"""Searches end by counted work: a clock that jumps changes nothing."""

from __future__ import annotations

import itertools
import time

import pytest

from planner.common.stop import Stop
from planner.solver import incumbent, solve, windows
from planner.solver.solve import SolveOptions
from planner.solver.work import LEAST, Work
from tests.planner.solver.problems import large, with_windows

HOUR_S = 3600.0


class Jumping:
    """A clock on which an hour passes between two looks."""

    def __init__(self) -> None:
        self.looks = itertools.count()

    def monotonic(self) -> float:
        return HOUR_S * next(self.looks)


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Jumping()
    for module in (incumbent, solve, windows):
        monkeypatch.setattr(module, "time", clock)


@pytest.mark.usefixtures("jumping")
@pytest.mark.parametrize("overlap", [False, True])
def test_a_clock_that_jumps_changes_nothing(overlap: bool) -> None:
    problem = large(3, nodes=10, options=4)
    problem = with_windows(problem, 3) if overlap else problem
    jumped, plain = Work(), Work()
    found = solve.solve(problem, SolveOptions(work=jumped))
    with pytest.MonkeyPatch.context() as patch:
        for module in (incumbent, solve, windows):
            patch.setattr(module, "time", time)
        again = solve.solve(problem, SolveOptions(work=plain))
    assert (again.choice, again.bound, again.stop) == (found.choice, found.bound, found.stop)
    assert plain.done == jumped.done > 0.0
    assert solve.solve(problem, SolveOptions(time_limit_s=60.0)).stop is Stop.TIME_LIMIT


def test_exhausted_work_ends_a_search_with_a_choice_and_a_bound() -> None:
    problem = large(3, nodes=40)
    used = Work(limit=1.0, done=2.0)
    found = solve.solve(problem, SolveOptions(work=used, tolerance=0.0))
    assert used.done > LEAST
    assert problem.is_feasible(found.choice)
    assert 0.0 < found.bound < found.cost
    assert found.stop is Stop.GAP
