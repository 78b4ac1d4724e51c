"""Branch and bound over who uses memory, where prices of memory leave a gap.

The bound of prices is the best mix of choices that fits on average. Where few nodes use most of a
tight moment, no choice is near that mix: one leaves memory unused, the next is over the limit. Such
a node is told by its options: at the prices found, some that use much cost as little as some that
use little. It is split into those that pay more than a cut and those that pay less; either side has
a higher bound and is fixed, reduced and split again. A side that is small is a 0/1 programme; sides
of large problems are not reduced, see `subproblems.py`.

The bound of all sides together is the least of those that are left.

Source: Geoffrion, Lagrangean relaxation for integer programming, Mathematical Programming Study 2,
1974.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from ...common.stop import Stop
from ..arrays import Flat, Ints
from ..bound.memory_multipliers import Prices
from ..bound.reduced_cost_fixing import cheap_enough
from ..budget import DEFAULT, Budget
from ..exact.ilp import columns, solve_ilp
from ..problem import Floats
from ..reduce.reduce import Reduced, reduce
from .restarts import carried_over, some_option_each
from .subproblems import SWEPT, Side, at_once, further, side_of

SHRUNK, MUCH = 0.7, 0.9  # shares of a problem that are left when enough of it went
# Sides of large problems are probed by so many steps, and go on by so many more as long as that
# raises the bound, so many of them at once.
PROBED, STRIDE, ABREAST = 2, 3, 2


class Branches:
    """The search below one problem; `bound` holds for what of it is of interest."""

    def __init__(
        self, prices: Prices, wanted: Callable[[], float], offer: Callable[[Ints], None],
        deadline: float, seen: Callable[[Prices], None] | None = None,
        budget: Budget = DEFAULT,
    ) -> None:  # fmt: skip
        """Takes the problem with its prices, what a choice must cost less than, and who wants it.

        Args:
            prices: of the problem, at rest.
            wanted: only choices below this cost are of interest.
            offer: takes choices of the problem that fit.
            deadline: by the monotonic clock.
            seen: told of the prices of each side of a large problem.
            budget: of the search.
        """
        self.budget = budget
        self.wanted, self.offer, self.deadline, self.seen = wanted, offer, deadline, seen
        self.open: list[tuple[float, int, Side]] = []
        self.closed = np.inf  # least bound of the sides that are split no further
        self.count = 0
        self.work = 0.0  # columns times passes so far
        self._push(Side(prices.best.bound, prices, ()))

    @property
    def bound(self) -> float:
        """Every choice of interest costs at least this much, infinite where there is none."""
        return min(self.open[0][0] if self.open else np.inf, self.closed)

    @property
    def ended(self) -> bool:
        """Whether splitting cannot raise the bound any more."""
        return not self.open or self.closed <= self.open[0][0]

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def split(self) -> None:
        """Splits the side with the least bound."""
        _, _, side = heapq.heappop(self.open)
        if side.bound >= self.wanted():
            return
        if side.growing:
            self._further([side, *self._others()], STRIDE)
            return
        part = heavy_options(side.prices, self.wanted() - side.bound, side.held)
        if part is None:
            self.closed = min(self.closed, side.bound)
        elif columns(side.prices.flat) > self.budget.whole_columns:
            wanted = self.wanted()
            parts = (side_of(side, held, wanted) for held in part)
            self._further([each for each in parts if each is not None], PROBED)
        else:
            for held in part:
                self._push(self._below(side, held))

    def _others(self) -> Iterator[Side]:
        """Further sides that still grow."""
        for _ in range(ABREAST - 1):
            if self.open and self.open[0][2].growing and self.open[0][0] < self.wanted():
                yield heapq.heappop(self.open)[2]

    def _further(self, sides: Sequence[Side], steps: int) -> None:
        """Some steps on sides of large problems, at once: what they find is offered afterwards."""
        wanted = self.wanted()
        for side, done in zip(
            sides, at_once([partial(further, side, steps, wanted) for side in sides]), strict=True
        ):
            self.work += done.work
            for choice in done.found:
                self._found(side.levels, choice)
            if self.seen is not None and done.side is not None:
                self.seen(side.prices)
            self._push(done.side)

    def _push(self, side: Side | None) -> None:
        if side is not None:
            self.count += 1
            heapq.heappush(self.open, (side.bound, self.count, side))

    # --- sides that are problems of their own ---

    def _below(self, side: Side, held: np.ndarray) -> Side | None:
        """A side of a side; None if it has no choice of interest."""
        flat, bound, prices, levels = side.prices.flat, side.bound, side.prices, side.levels
        while True:
            below = reduce(flat, held) if some_option_each(flat, held) else None
            if below is None or below.broken:
                return None
            levels = (*levels, below)
            if not below.flat.size:
                self._found(levels, np.zeros(0, dtype=np.int64))
                return None
            known = carried_over(prices, below.flat)
            prices = Prices(below.flat, known, self.wanted(), budget=self.budget)
            self._climb(prices, levels)
            bound = max(bound, prices.best.bound)
            if bound >= self.wanted():
                return None
            margin = self.wanted() - prices.best.bound + 1e-9 * abs(bound)
            size = columns(below.flat)
            flat, held = cheap_enough(prices.messages, prices.best, margin)
            if size <= self.budget.side_columns:
                return self._exact(Side(bound, prices, levels))
            if self.late or columns(flat, held) > MUCH * size:
                return Side(bound, prices, levels)

    def _climb(self, prices: Prices, levels: tuple[Reduced, ...]) -> None:
        """Steps of prices until they bring little or much can be left out."""
        size = columns(prices.flat)
        for _ in range(self.budget.side_steps):
            self.work += SWEPT * size
            if prices.step():
                assert prices.choice is not None
                self._found(levels, prices.choice)
            left = self.wanted() - prices.best.bound
            if left <= 0.0 or prices.stale >= self.budget.side_stale_steps or self.late:
                break
            if columns(prices.flat, prices.best.slack <= left) < SHRUNK * size:
                break
        prices.rest()

    def _exact(self, side: Side) -> Side | None:
        """A small side by the 0/1 programme."""
        found = solve_ilp(
            side.prices.flat, time_limit_s=max(self.deadline - time.monotonic(), 0.0),
            cutoff=self.wanted(), nodes=self.budget.side_nodes, work=self.budget.side_work,
        )  # fmt: skip
        if found.choice is not None:
            self._found(side.levels, found.choice)
        bound = max(side.bound, found.bound)
        none = found.stop is Stop.INFEASIBLE or bound >= self.wanted()
        return None if none else Side(bound, side.prices, side.levels)

    def _found(self, levels: tuple[Reduced, ...], choice: Ints) -> None:
        for level in reversed(levels):
            choice = level.lift(choice)
        self.offer(choice)


def heavy_options(
    prices: Prices, margin: float = np.inf, held: np.ndarray | None = None
) -> Iterator[np.ndarray] | None:
    """The options of either side where one node is split; None where none uses memory.

    With p_v(i) what option i of node v pays for memory and s_v(i) how far above the bound it is, a
    cut between two payments a < b is as good as

        b - a - max( min s_v(i) : p_v(i) <= a,  min s_v(i) : p_v(i) >= b )

    The node and cut with the largest are taken. Of a problem that was reduced all options are left.

    Args:
        prices: of the problem, at rest.
        margin: how far above the bound an option may be.
        held: options that are left, all if None.
    """
    flat = prices.flat
    slack = np.where(prices.best.slack <= margin, prices.best.slack, np.inf)
    if held is not None:
        slack[~held] = np.inf
    best, node, heavy = -np.inf, -1, np.zeros(0, dtype=np.bool_)
    for v, paid in payments(flat, prices.price).items():
        order = np.argsort(paid, kind="stable")
        rising, near = paid[order], slack[flat.first[v] : flat.first[v + 1]][order]
        low = np.minimum.accumulate(near)[:-1]
        high = np.minimum.accumulate(near[::-1])[::-1][1:]
        apart = np.diff(rising)
        worth = np.where(apart > 0.0, apart - np.maximum(low, high), -np.inf)
        n = int(np.argmax(worth))
        if worth[n] > best:
            best, node, heavy = float(worth[n]), v, paid > rising[n]
    return None if node < 0 else _sides(flat, node, heavy)


def _sides(flat: Flat, v: int, heavy: np.ndarray) -> Iterator[np.ndarray]:
    for gone in (heavy, ~heavy):
        held = np.ones(len(flat.cost), dtype=np.bool_)
        held[flat.first[v] : flat.first[v + 1]] = ~gone
        yield held


def payments(flat: Flat, price: Floats) -> dict[int, Floats]:
    """What each option of the nodes with a price pays for memory."""
    total = np.concatenate(([0.0], np.cumsum(price)))
    found: dict[int, Floats] = {}
    for k in np.flatnonzero(total[flat.end] > total[flat.begin]).tolist():
        v, at = int(flat.owner[k]), int(flat.use_at[k])
        size = int(flat.sizes[v])
        paid = (total[flat.end[k]] - total[flat.begin[k]]) * flat.use[at : at + size]
        found[v] = found[v] + paid if v in found else paid
    return found
