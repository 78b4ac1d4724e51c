"""Kernel search within a wide problem.

Options are sampled into a kernel (`kernel.py`), whose own multipliers give a choice at once. Once
the bound of the kernel is near that of the whole problem, the kernel is searched as a problem.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..arrays import Flat, Ints
from ..bound.memory_multipliers import Multipliers
from ..incumbent import Incumbent
from ..options import SolveOptions
from .kernel import Kernel
from .restarts import projected

CLOSE = 0.5  # largest distance of the two bounds at which the kernel is searched, share of the gap
NEWS = 1.02  # growth of the kernel that is needed after an unproductive search
# Gap at which a search of the kernel ends, and the improvement that makes it productive.
GAP, BETTER = 1e-3, 1e-3

# Best choice of a problem restricted to some options, from nearby multipliers and a known choice.
Part = Callable[[SolveOptions, Flat, np.ndarray, Multipliers, Ints | None], Ints | None]


class KernelSearch:
    """Kernel search on one level of a search."""

    def __init__(self, host: Incumbent, multipliers: Multipliers, part: Part) -> None:
        """Makes an empty kernel.

        Args:
            host: the search, with its best choice.
            multipliers: multipliers of its last level.
            part: search of a restricted problem.
        """
        self.host, self.multipliers, self.part = host, multipliers, part
        self.kernel = Kernel(multipliers.flat, host.options.seed, host.options.budget)
        self.known = 0  # size of the kernel when it was last searched
        self.worth: list[bool] = []  # for each search whether it was productive

    @property
    def unproductive(self) -> bool:
        """Whether the last `unproductive_searches` searches found no much better choice."""
        most = self.host.options.budget.unproductive_searches
        return len(self.worth) >= most and not any(self.worth[-most:])

    def grow(self, *, last: bool) -> None:
        """Samples options, and searches the kernel once its bound is close.

        Args:
            last: whether the kernel is searched even if its bound is far from the whole problem's.
        """
        host, multipliers = self.host, self.multipliers
        self.kernel.sample(multipliers)
        near = self.kernel.restricted(multipliers, self._known()[1], host.cost, self._offer)
        most = CLOSE * (host.cost - multipliers.best.bound)
        if near is None or last or near.best.bound - multipliers.best.bound <= most:
            if self.worth and not self.worth[-1] and self.kernel.read.sum() < NEWS * self.known:
                self.worth.append(False)  # the kernel hardly grew since an unproductive search
            else:
                self.search(near)

    def search(self, near: Multipliers | None = None) -> None:
        """Searches the kernel, from its own multipliers or those of the whole problem."""
        host, multipliers, before = self.host, self.multipliers, self.host.cost
        options = replace(
            host.options, budget=host.options.budget.kernel(), start=(), cutoff=multipliers.cost,
            tolerance=max(host.options.tolerance, GAP),
            time_limit_s=max(host.deadline - time.monotonic(), 0.0),
        )  # fmt: skip
        best, held = self._known()
        found = self.part(options, multipliers.flat, held, near or multipliers, best)
        if found is not None:
            self._offer(found)
        self.known = int(self.kernel.read.sum())
        self.worth.append(host.cost < before - BETTER * abs(before))
        if self.worth[-1]:
            multipliers.stale = 0

    def _known(self) -> tuple[Ints | None, np.ndarray]:
        """The best choice, and the kernel options that a better one may have."""
        host, multipliers = self.host, self.multipliers
        if host.best is None:
            return None, self.kernel.promising(multipliers, np.inf)
        best = projected(host.best, host.levels, multipliers)
        self.kernel.add(best)
        return best, self.kernel.promising(multipliers, host.margin(multipliers.best.bound))

    def _offer(self, choice: Ints) -> None:
        self.multipliers.offer(choice)
        self.host.offer(choice)
