"""The options that prices play with: a small problem that has good choices of a large one.

Near good prices of memory a large problem is decided but for some options. Which ones is asked by
reading many choices off the messages, at several shares of the prices, a little wrong, and with
memory limited or not: at low prices they are faster than what fits, at high ones leaner. All
options that were ever read make a small problem. Its own prices take no time and give a choice;
once its bound is near that of the whole problem, it is searched for itself. More are read as prices
become better, so that it grows where it matters.

Source: Angelelli, Mansini and Speranza, Kernel search: a general heuristic for the
multi-dimensional knapsack problem, Computers and Operations Research 37, 2010.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..arrays import Flat, Ints
from ..bound.memory_multipliers import Prices
from ..budget import DEFAULT, Budget
from ..reduce.reduce import reduce
from .restarts import carried_over

SHARES = (1.0, 0.96, 0.9, 0.84, 0.78, 0.7, 1.06)  # of the prices
SWEEPS = 2  # of messages at each share
READ = 8  # choices at each share
FITTING = 4  # one in so many is asked to fit
COOLEST = 4  # the least wrong messages are wrong by the gap per node over 4 to this power


class Focus:
    """Options of one problem that were read so far."""

    def __init__(self, flat: Flat, seed: int, budget: Budget = DEFAULT) -> None:
        self.flat, self.budget = flat, budget
        self.random = np.random.default_rng(seed)
        self.read = np.zeros(len(flat.cost), dtype=np.bool_)
        self.free = np.full(len(flat.limit), np.inf)  # as much memory as is wanted

    def also(self, choice: Ints) -> None:
        """Takes the options of a choice."""
        self.read[self.flat.first[:-1] + choice] = True

    def read_off(self, prices: Prices) -> None:
        """Reads choices at some prices, of this problem or of a part of it."""
        heat = prices.gap / self.flat.size
        for n in range(READ):
            least = heat * 4.0 ** (n % (COOLEST + 1) - COOLEST) if n else 0.0
            wrong = self.random.exponential(least, len(self.read))
            fitting = n % FITTING == FITTING - 1
            self.also(prices.messages.round(None if fitting else self.free, wrong))

    def look(self, prices: Prices) -> None:
        """Reads choices near some prices, which go on from where they were."""
        messages = prices.messages
        state, price, way = messages.state(), messages.price, messages.way
        for share in SHARES:
            messages.restore(state)
            messages.pay(price * share)
            for _ in range(SWEEPS if share != 1.0 else 0):
                messages.sweep()
            self.read_off(prices)
        messages.restore(state)
        messages.way = way

    def near(
        self, prices: Prices, held: np.ndarray, ceiling: float, offer: Callable[[Ints], None]
    ) -> Prices | None:
        """Prices of the problem with the options held only; None where it is none.

        Args:
            prices: of the whole problem.
            held: options of it.
            ceiling: the cost of a choice known elsewhere.
            offer: takes choices of the whole problem.
        """
        below = reduce(self.flat, held)
        if below.broken or not below.flat.size:
            return None
        budget = self.budget
        found = Prices(below.flat, carried_over(prices, below.flat), ceiling, budget=budget)
        for _ in range(budget.kernel_steps):
            if found.step():
                assert found.choice is not None
                offer(below.lift(found.choice))
            if found.stale >= budget.kernel_stale_steps:
                break
        return found

    def held(self, prices: Prices, margin: float) -> np.ndarray:
        """The options read so far that may be part of a choice so far above the bound."""
        return self.read & (prices.best.slack <= margin)
