"""The portfolio: reduce, pass messages, price memory, mend, and close small gaps exactly.

1. Without memory: nodes of degree two or less are eliminated, the core is solved by message
   passing, which also bounds it from below.
2. If that breaks the memory limit: prices on the worst moments, by bisection; each price gives a
   bound, the dearest infeasible and the cheapest feasible choice are relinked, and the result is
   improved node by node. Before that, and where no price fits: choices of least memory, likewise.
3. If a gap is left and the programme is small, or still nothing fits: HiGHS.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ..stop import Stop
from .eliminate import Tables
from .flat import flatten_problem
from .ilp import columns, solve_ilp
from .mend import Mender
from .priced import PricedSolver
from .problem import IntraProblem, IntraSolution

# The programme is handed to HiGHS only below this size: above, its relaxation takes longer than
# the whole search should. Where nothing is known that fits, the answer is worth more time.
ILP_COLUMNS = 30_000
ILP_COLUMNS_AT_LAST = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """How long and how far to search; the same options give the same answer."""

    time_limit_s: float = 60.0
    tolerance: float = 1e-4
    memory_tolerance: float = 1e-3  # gap at which the search for prices of memory ends
    sweeps: int = 120
    price_steps: int = 14
    ilp: bool = True


def solve(
    problem: IntraProblem, options: SolveOptions | None = None, tables: Tables | None = None
) -> IntraSolution:
    """Best choice found, with a proven lower bound and the reason to stop.

    The choice is empty if nothing fits (`INFEASIBLE`: proved) or nothing was found that does
    (`TIME_LIMIT`, or `GAP` where the problem is too large for an exact answer).
    """
    options = options or SolveOptions()
    if not problem.size:
        return IntraSolution((), 0.0, 0.0, Stop.OPTIMAL)
    search = _Search(problem, options, tables or Tables())
    search.unconstrained()
    if not search.settled():
        search.price_memory()
    if not search.settled() and not search.best:
        search.least_memory()
    if options.ilp and not search.settled():
        search.exact()
    return search.answer()


class _Search:
    def __init__(self, problem: IntraProblem, options: SolveOptions, tables: Tables) -> None:
        self.problem, self.options = problem, options
        self.deadline = time.monotonic() + options.time_limit_s
        self.solver = PricedSolver(problem, tables)
        self.best: tuple[int, ...] = ()
        self.best_cost = float("inf")
        self.bound = -np.inf
        self.infeasible = False
        self.mender = Mender(problem)

    def offer(self, choice: tuple[int, ...]) -> bool:
        """Keeps a feasible choice that is better; whether it is feasible."""
        feasible = self.problem.is_feasible(choice)
        if feasible and (cost := self.problem.cost(choice)) < self.best_cost:
            self.best, self.best_cost = choice, cost
        return feasible

    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def settled(self) -> bool:
        return self.infeasible or self.late() or self.close(self.options.tolerance)

    def close(self, tolerance: float) -> bool:
        """Whether the best choice is within a relative tolerance of the bound."""
        gap = self.best_cost - self.bound
        return bool(self.best) and gap <= tolerance * abs(self.best_cost)

    def refute(self) -> None:
        """Notes that nothing fits."""
        self.infeasible, self.bound = True, float("inf")

    def ask(self, prices: dict[int, float]) -> tuple[int, ...]:
        answer = self.solver.solve(
            prices, sweeps=self.options.sweeps, deadline=self.deadline,
            tolerance=self.options.tolerance,
        )  # fmt: skip
        self.bound = max(self.bound, answer.bound)
        return answer.choice

    def unconstrained(self) -> None:
        """The best choice without a limit; if it does not fit, one that does, however dear."""
        self.free_choice = self.ask({})
        least = self.problem.peak([int(np.argmin(use)) for use in self.problem.usage])
        if least > self.problem.limit * (1 + 1e-12) or self.bound == float("inf"):
            self.refute()
        elif not self.offer(self.free_choice):
            frugal = tuple(
                int(np.lexsort((cost, use))[0])
                for cost, use in zip(self.problem.node_cost, self.problem.usage, strict=True)
            )
            if self.offer(frugal):
                self.mend(frugal, self.free_choice)

    # --- memory ---

    def price_memory(self) -> None:
        """Bisects one price on the moments that were ever worst.

        With one price the memory at a moment falls as the price rises, so bisection finds the
        least price that fits; moments join the priced set as they become the worst.
        """
        problem = self.problem
        spread = problem.peak(self.free_choice) - problem.limit
        if spread <= problem.limit * 1e-12:
            return
        cost = problem.cost(self.free_choice)
        scale = abs(cost) if 0 < abs(cost) < float("inf") else 1e-9
        moments = [self._worst(self.free_choice)]
        price = scale * 0.05 / max(spread, 1.0)
        low, high = 0.0, float("inf")
        cheap, fits = self.free_choice, ()
        for _ in range(self.options.price_steps):
            if self.settled():
                break
            choice = self.ask({t: price / len(moments) for t in moments})
            if self.offer(choice):
                high, fits = price, choice
            else:
                worst = self._worst(choice)
                if worst not in moments:
                    moments.append(worst)
                    high = float("inf")
                low, cheap = price, choice
            if fits:
                self.mend(fits, cheap)
            if self.close(self.options.memory_tolerance):
                break
            price = _between(low, high)
            if high < float("inf") and low and high / low < 1.02:
                break
        if self.best:
            self.mend(self.best, self.free_choice)

    def _worst(self, choice: tuple[int, ...]) -> int:
        return int(np.argmax(self.problem.memory(choice)))

    def least_memory(self) -> None:
        """Pays for memory at every moment, so dearly that cost only breaks ties."""
        problem = self.problem
        moments = sorted({start for start, end in problem.intervals if start < end})
        finite = [c[np.isfinite(c)] for c in (*problem.node_cost, *(e.cost for e in problem.edges))]
        costs = sum(float(np.abs(c).max()) for c in finite if c.size)
        price = 1e3 * max(costs, 1e-9) / max(problem.peak(self.free_choice), 1.0)
        choice = self.ask(dict.fromkeys(moments, price))
        if self.offer(choice):
            self.mend(choice, self.free_choice)

    def mend(self, feasible: tuple[int, ...], cheap: tuple[int, ...]) -> None:
        """Offers a feasible choice linked towards a cheaper one, then improved node by node."""
        linked = self.mender.relink(feasible, cheap)
        self.offer(self.mender.descend(linked, self.deadline))

    # --- the end ---

    def exact(self) -> None:
        """HiGHS, if the programme is small enough to write down."""
        flat = flatten_problem(self.problem)
        if columns(flat) > (ILP_COLUMNS if self.best else ILP_COLUMNS_AT_LAST):
            return
        known = np.array(self.best, dtype=np.int64) if self.best else None
        found = solve_ilp(flat, time_limit_s=self.deadline - time.monotonic(), known=known)
        if found.choice is not None:
            self.offer(tuple(found.choice.tolist()))
        elif found.stop is Stop.INFEASIBLE and not self.best:
            self.refute()
            return
        self.bound = max(self.bound, found.bound)

    def answer(self) -> IntraSolution:
        if self.infeasible:
            return IntraSolution((), float("inf"), float("inf"), Stop.INFEASIBLE)
        left_open = Stop.TIME_LIMIT if self.late() else Stop.GAP
        if not self.best:
            return IntraSolution((), float("inf"), self.bound, left_open)
        stop = Stop.OPTIMAL if self.close(self.options.tolerance) else left_open
        return IntraSolution(self.best, self.best_cost, min(self.bound, self.best_cost), stop)


def _between(low: float, high: float) -> float:
    """The next price: upwards until one fits, then the middle in logarithms."""
    if high == float("inf"):
        return low * 8.0
    return (low * high) ** 0.5 if low else high / 8.0
