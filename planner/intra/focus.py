"""The options that prices play with: a small problem that has good choices of a large one.

Near good prices of memory a large problem is decided but for some options. Which ones is asked by
reading many choices off the messages, at several shares of the prices, a little wrong, and with
memory limited or not: at low prices they are faster than what fits, at high ones leaner. All
options that were ever read make a small problem that is solved for itself. More are read as prices
become better, so that it grows where it matters.

Source: Angelelli, Mansini and Speranza, Kernel search: a general heuristic for the
multi-dimensional knapsack problem, Computers and Operations Research 37, 2010.
"""

from __future__ import annotations

import numpy as np

from .flat import Flat, Ints
from .prices import Prices

SHARES = (1.0, 0.96, 0.9, 0.84, 0.78, 0.7, 1.06)  # of the prices
SWEEPS = 6  # of messages at each share
READ = 8  # choices at each share
FITTING = 4  # one in so many is asked to fit
COOLEST = 4  # the least wrong messages are wrong by the gap per node over 4 to this power


class Focus:
    """Options of one problem that were read so far."""

    def __init__(self, flat: Flat, seed: int) -> None:
        self.flat = flat
        self.random = np.random.default_rng(seed)
        self.read = np.zeros(len(flat.cost), dtype=np.bool_)
        self.worth: list[bool] = []  # of each look, whether a much better choice came of it

    def vain(self, times: int) -> bool:
        """Whether so many looks in a row were worth nothing."""
        return len(self.worth) >= times and not any(self.worth[-times:])

    def also(self, choice: Ints) -> None:
        """Takes the options of a choice."""
        self.read[self.flat.first[:-1] + choice] = True

    def look(self, prices: Prices) -> None:
        """Reads choices near some prices, which go on from where they were."""
        messages, flat = prices.messages, self.flat
        state, price = messages.state(), messages.price
        heat = prices.gap / flat.size
        for share in SHARES:
            messages.restore(state)
            messages.pay(price * share)
            for _ in range(SWEEPS if share != 1.0 else 0):
                messages.sweep()
            mass = messages.mass
            for n in range(READ):
                wrong = heat * 4.0 ** (n % (COOLEST + 1) - COOLEST) if n else 0.0
                messages.mass = mass + self.random.exponential(wrong, len(mass))
                fitting = n % FITTING == FITTING - 1
                self.also(messages.round(None if fitting else np.full(len(flat.limit), np.inf)))
        messages.restore(state)

    def held(self, prices: Prices, margin: float) -> np.ndarray:
        """The options read so far that may be part of a choice so far above the bound."""
        return self.read & (prices.best.slack <= margin)
