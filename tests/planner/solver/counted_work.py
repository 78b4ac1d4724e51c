"""Solves whose clock is counted work, so that limits in seconds act at the same place each time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from planner.solver import incumbent, solve, windows
from planner.solver.bound.message_passing import Messages
from planner.solver.budget import Budget
from planner.solver.exact import ilp
from planner.solver.exact.highs import Highs
from planner.solver.numba_processes import warm
from planner.solver.problem import IntraProblem
from planner.solver.search import branch_and_bound, kernel_search

COLUMNS_PER_S = 1e6
READING_S = 1e-3  # a reading of the clock: no loop that waits for it is endless
UNTIMED_S = 1e5


@dataclass(frozen=True, slots=True)
class Effort:
    """Cost, bound and work of a solve.

    Work is columns passed over: those of a problem at each sweep, those of a programme when it is
    written and each time that branch and bound asks whether to go on.
    """

    cost: float
    bound: float
    work: float


class CountedWork:
    """Counts the work of solves, and is their clock."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Takes the place of the clock of the solver's modules."""
        warm()
        self.work, self.seconds = 0.0, 0.0
        clock = SimpleNamespace(monotonic=self._now)
        for module in (solve, windows, incumbent, ilp, branch_and_bound, kernel_search):
            patch.setattr(module, "time", clock)
        sweep, ask, run = Messages.sweep, Highs.ask_branching, Highs.run

        def counted_sweep(messages: Messages) -> None:
            self.work += ilp.columns(messages.flat)
            sweep(messages)

        def counted_ask(highs: Highs, event: Any) -> None:
            self.work += highs.columns
            ask(highs, event)

        def counted_run(highs: Highs, deadline: float, asks: float = float("inf")) -> str:
            left = (deadline - clock.monotonic()) * COLUMNS_PER_S
            self.work += highs.columns
            if left <= 0.0:
                return "stopped"
            most = min(asks, left // max(highs.columns, 1))
            return run(highs, time.monotonic() + UNTIMED_S, most)

        patch.setattr(Messages, "sweep", counted_sweep)
        patch.setattr(Highs, "ask_branching", counted_ask)
        patch.setattr(Highs, "run", counted_run)

    def _now(self) -> float:
        self.seconds += READING_S
        return self.seconds + self.work / COLUMNS_PER_S

    def of(self, problem: IntraProblem, budget: Budget, limit_s: float) -> Effort:
        """Solves a problem within a limit of counted time.

        Args:
            problem: the problem.
            budget: limits of the search.
            limit_s: time limit [s of counted work].
        """
        before = self.work
        found = solve.solve(problem, solve.SolveOptions(time_limit_s=limit_s, budget=budget))
        return Effort(found.cost, found.bound, self.work - before)
