"""The best choice and bound of a search so far, and its end conditions."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ..common.stop import Stop
from .arrays import Flat, Ints
from .options import SolveOptions
from .problem import IntraProblem, IntraSolution, Point
from .reduce.reduce import Reduced

EXACT = 1e-9  # relative: what counts as better, where costs are not whole
ROUNDING = 1e-14  # and where they are


class Incumbent:
    """The best choice and bound so far, and the levels of fixing that led to them."""

    def __init__(self, options: SolveOptions, watch: Callable[[Point], None] | None) -> None:
        """Starts the clock.

        Args:
            options: tolerance and limits.
            watch: receiver of every improvement.
        """
        self.options, self.watch = options, watch
        self.begin = time.monotonic()
        self.deadline = self.begin + options.time_limit_s
        self.most_work = options.work.limit_of_next
        self.original: Flat
        self.best: Ints | None = None
        self.cost, self.bound = np.inf, -np.inf
        self.infeasible = False
        self.done = False  # proved, or nothing left to try
        self.trace: list[Point] = []
        self.levels: list[Reduced] = []
        self.whole = False

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self.deadline

    @property
    def late(self) -> bool:
        """Whether the time or the work is used up."""
        return self.options.work.done > self.most_work or self.out_of_time

    @property
    def settled(self) -> bool:
        return self.done or self.infeasible or self.late or self.close

    @property
    def close(self) -> bool:
        """Whether the best choice is within the tolerance of the bound."""
        gap = self.cost - self.bound
        return self.best is not None and gap <= self.options.tolerance * abs(self.cost)

    @property
    def wanted(self) -> float:
        """Cost below which a choice is wanted [s]."""
        if self.best is None:
            return np.inf
        least = max(self.options.tolerance, ROUNDING if self.whole else EXACT) * abs(self.cost) / 2
        better = self.cost - (max(0.5, least) if self.whole else least)
        return min(better, self.options.cutoff)

    def margin(self, bound: float) -> float:
        """Largest distance of a wanted choice above a bound [s]."""
        return self.wanted - bound + 1e-9 * abs(self.cost)

    def offer(self, choice: Ints) -> None:
        """Takes a choice of the current level if it is better."""
        for level in reversed(self.levels):
            choice = level.lift(choice)
        self.take(choice)

    def take(self, choice: Ints) -> None:
        """Takes a choice of the problem itself if it is better."""
        cost = self.original.cost_of(choice)
        if cost < self.cost and self.original.fits(choice):
            self.best, self.cost = choice, cost
            self._note()

    def take_known(self) -> None:
        """Takes the choice to start from, where there is no other."""
        if self.best is None and self.options.start:
            self.take(np.array(self.options.start))

    def raise_bound(self, bound: float) -> None:
        """Takes a lower bound on the cost of the wanted choices [s]."""
        if self.best is not None and bound >= self.wanted:  # nothing better is left
            next_best = self.whole and self.cost - self.wanted < 1.0
            bound = self.cost if next_best else self.wanted
            self.done = True
        elif self.whole and np.isfinite(bound):
            bound = float(np.ceil(bound - 1e-9 * abs(bound) - 1e-6))
        if bound >= self.options.cutoff:
            self.done = True
        if bound > self.bound:
            self.bound = min(bound, self.cost)
            self._note()

    def _note(self) -> None:
        point = (time.monotonic() - self.begin, self.cost, self.bound)
        self.trace.append(point)
        if self.watch is not None:
            self.watch(point)

    def answer(self, problem: IntraProblem, stop: Stop | None) -> IntraSolution:
        """The solution of a problem, with the reason why the search ended."""
        trace, seconds = tuple(self.trace), time.monotonic() - self.begin
        if self.infeasible:
            return IntraSolution((), np.inf, np.inf, Stop.INFEASIBLE, trace, seconds)
        left_open = stop or (Stop.TIME_LIMIT if self.out_of_time else Stop.GAP)
        known = self.bound if self.close else max(self.bound, problem.least_cost())
        if self.best is None:
            return IntraSolution((), np.inf, known, left_open, trace, seconds)
        choice = tuple(self.best.tolist())
        cost = problem.cost(choice)
        bound = min(known, cost)
        close = max(self.options.tolerance, ROUNDING if self.whole else EXACT)
        optimal = cost - bound <= close * abs(cost)
        end = Stop.OPTIMAL if optimal else left_open
        return IntraSolution(choice, cost, bound, end, trace, seconds)
