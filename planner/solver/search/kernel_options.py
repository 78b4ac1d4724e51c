"""Looks at what prices play with, on the way through a wide problem.

A look reads options off prices (`kernel_search.py`), whose own prices give a choice at once. Once
the bound of what was read is near that of the whole problem, it is searched as a problem of its
own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..arrays import Flat, Ints
from ..bound.memory_multipliers import Prices
from ..incumbent import Incumbent
from ..options import SolveOptions
from .kernel_search import Focus
from .restarts import projected

CLOSE = 0.5  # how near a bound must be to that of the whole problem, as a share of the gap
NEWS = 1.02  # how many times as many options a search after one in vain takes
# Gap of a search, and what of the cost must come of it.
GAP, BETTER = 1e-3, 1e-3

# Best choice of a problem of which some options are left, from prices near it and a choice of it.
Part = Callable[[SolveOptions, Flat, np.ndarray, Prices, Ints | None], Ints | None]


class Looks:
    """Looks at one level of a search."""

    def __init__(self, host: Incumbent, prices: Prices, part: Part) -> None:
        """Takes who looks, prices of its last level, and how a part of that is searched."""
        self.host, self.prices, self.part = host, prices, part
        self.focus = Focus(prices.flat, host.options.seed, host.options.budget)
        self.known = 0  # options that were read when they were last searched
        self.worth: list[bool] = []  # of each search, whether a much better choice came of it

    @property
    def vain(self) -> bool:
        """Whether the last searches in a row were worth nothing."""
        most = self.host.options.budget.vain_looks
        return len(self.worth) >= most and not any(self.worth[-most:])

    def look(self, *, last: bool) -> None:
        """Reads options and improves on the best choice; much is progress of the prices, too.

        last: what was read is searched even if its bound is far from that of the whole problem.
        """
        host, prices = self.host, self.prices
        self.focus.look(prices)
        near = self.focus.near(prices, self._known()[1], host.cost, self._offer)
        most = CLOSE * (host.cost - prices.best.bound)
        if near is None or last or near.best.bound - prices.best.bound <= most:
            if self.worth and not self.worth[-1] and self.focus.read.sum() < NEWS * self.known:
                self.worth.append(False)  # hardly more was read since a search in vain
            else:
                self.search(near)

    def search(self, near: Prices | None = None) -> None:
        """Searches the options read so far, from prices of them or of the whole problem."""
        host, prices, before = self.host, self.prices, self.host.cost
        options = replace(
            host.options, budget=host.options.budget.kernel(), start=(), cutoff=prices.cost,
            tolerance=max(host.options.tolerance, GAP),
            time_limit_s=max(host.deadline - time.monotonic(), 0.0),
        )  # fmt: skip
        best, held = self._known()
        found = self.part(options, prices.flat, held, near or prices, best)
        if found is not None:
            self._offer(found)
        self.known = int(self.focus.read.sum())
        self.worth.append(host.cost < before - BETTER * abs(before))
        if self.worth[-1]:
            prices.stale = 0

    def _known(self) -> tuple[Ints | None, np.ndarray]:
        """The best choice, and the options read so far that may be part of a better one."""
        host, prices = self.host, self.prices
        if host.best is None:
            return None, self.focus.held(prices, np.inf)
        best = projected(host.best, host.levels, prices)
        self.focus.also(best)
        return best, self.focus.held(prices, host.margin(prices.best.bound))

    def _offer(self, choice: Ints) -> None:
        self.prices.offer(choice)
        self.host.offer(choice)
