"""Branch and bound over the nodes that use much memory, where memory multipliers leave a gap.

The bound of the multipliers is the best mix of choices that fits on average. Where few nodes use
most of a tight moment, no choice is near that mix: one leaves memory unused, the next is over the
limit. Such a node shows in its options: at the multipliers found, some that use much memory cost as
little as some that use little. Its options are split at a memory payment; both subproblems have a
higher bound and are fixed, reduced and split further. Small subproblems are 0/1 programmes; those
of large problems are not reduced, see `subproblems.py`.

The bound of the whole is the least bound of all subproblems left.

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
from ..bound.memory_multipliers import Multipliers
from ..bound.reduced_cost_fixing import cheap_enough
from ..budget import DEFAULT, Budget
from ..exact.ilp import columns, solve_ilp
from ..problem import Floats
from ..reduce.reduce import Reduced, reduce
from .restarts import carried_over, some_option_each
from .subproblems import SWEPT, Subproblem, at_once, further, subproblem_of

SHRUNK, MUCH = 0.7, 0.9  # shares of a problem left, below which it counts as reduced
# Steps that probe a subproblem of a large problem, steps that follow while the bound rises, and
# subproblems that run at once.
PROBED, STRIDE, ABREAST = 2, 3, 2


class Branches:
    """The search below one problem; `bound` holds for its wanted choices."""

    def __init__(
        self, multipliers: Multipliers, wanted: Callable[[], float], offer: Callable[[Ints], None],
        deadline: float, seen: Callable[[Multipliers], None] | None = None,
        budget: Budget = DEFAULT,
    ) -> None:  # fmt: skip
        """Starts with the whole problem.

        Args:
            multipliers: multipliers of the problem, at rest.
            wanted: cost below which a choice is wanted [s].
            offer: receiver of choices of the problem that fit.
            deadline: end of the search on the monotonic clock [s].
            seen: receiver of the multipliers of each subproblem of a large problem.
            budget: limits of the search.
        """
        self.budget = budget
        self.wanted, self.offer, self.deadline, self.seen = wanted, offer, deadline, seen
        self.open: list[tuple[float, int, Subproblem]] = []
        self.closed = np.inf  # least bound of the subproblems that are split no further
        self.count = 0
        self.work = 0.0  # columns times passes so far
        self.programmes_work = 0.0  # the same of the 0/1 programmes
        self._push(Subproblem(multipliers.best.bound, multipliers, ()))

    @property
    def bound(self) -> float:
        """Least cost of a wanted choice [s]; infinite if there is none."""
        return min(self.open[0][0] if self.open else np.inf, self.closed)

    @property
    def all_work(self) -> float:
        """Columns times passes so far, those of 0/1 programmes too."""
        return self.work + self.programmes_work

    @property
    def ended(self) -> bool:
        """Whether splitting cannot raise the bound any more."""
        return not self.open or self.closed <= self.open[0][0]

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def split(self) -> None:
        """Splits the subproblem with the least bound."""
        _, _, subproblem = heapq.heappop(self.open)
        if subproblem.bound >= self.wanted():
            return
        if subproblem.growing:
            self._further([subproblem, *self._others()], STRIDE)
            return
        part = heavy_options(
            subproblem.multipliers, self.wanted() - subproblem.bound, subproblem.held
        )
        if part is None:
            self.closed = min(self.closed, subproblem.bound)
        elif columns(subproblem.multipliers.flat) > self.budget.whole_columns:
            wanted = self.wanted()
            parts = (subproblem_of(subproblem, held, wanted) for held in part)
            self._further([each for each in parts if each is not None], PROBED)
        else:
            for held in part:
                self._push(self._below(subproblem, held))

    def _others(self) -> Iterator[Subproblem]:
        """Further subproblems whose bound still grows."""
        for _ in range(ABREAST - 1):
            if self.open and self.open[0][2].growing and self.open[0][0] < self.wanted():
                yield heapq.heappop(self.open)[2]

    def _further(self, subproblems: Sequence[Subproblem], steps: int) -> None:
        """Runs steps on subproblems of a large problem at once, then offers their choices."""
        wanted = self.wanted()
        for subproblem, done in zip(
            subproblems,
            at_once([partial(further, subproblem, steps, wanted) for subproblem in subproblems]),
            strict=True,
        ):
            self.work += done.work
            for choice in done.found:
                self._found(subproblem.levels, choice)
            if self.seen is not None and done.subproblem is not None:
                self.seen(subproblem.multipliers)
            self._push(done.subproblem)

    def _push(self, subproblem: Subproblem | None) -> None:
        if subproblem is not None:
            self.count += 1
            heapq.heappush(self.open, (subproblem.bound, self.count, subproblem))

    # --- reduced subproblems ---

    def _below(self, subproblem: Subproblem, held: np.ndarray) -> Subproblem | None:
        """A subproblem restricted to some options and reduced; None if no wanted choice is left."""
        flat, bound, multipliers, levels = (
            subproblem.multipliers.flat,
            subproblem.bound,
            subproblem.multipliers,
            subproblem.levels,
        )
        while True:
            below = reduce(flat, held) if some_option_each(flat, held) else None
            if below is None or below.broken:
                return None
            levels = (*levels, below)
            if not below.flat.size:
                self._found(levels, np.zeros(0, dtype=np.int64))
                return None
            known = carried_over(multipliers, below.flat)
            multipliers = Multipliers(below.flat, known, self.wanted(), budget=self.budget)
            self._climb(multipliers, levels)
            bound = max(bound, multipliers.best.bound)
            if bound >= self.wanted():
                return None
            margin = self.wanted() - multipliers.best.bound + 1e-9 * abs(bound)
            size = columns(below.flat)
            flat, held = cheap_enough(multipliers.messages, multipliers.best, margin)
            if size <= self.budget.subproblem_columns:
                return self._exact(Subproblem(bound, multipliers, levels))
            if self.late or columns(flat, held) > MUCH * size:
                return Subproblem(bound, multipliers, levels)

    def _climb(self, multipliers: Multipliers, levels: tuple[Reduced, ...]) -> None:
        """Runs steps of the multipliers until they bring little or much can be left out."""
        size = columns(multipliers.flat)
        for _ in range(self.budget.steps):
            self.work += SWEPT * size
            if multipliers.step():
                assert multipliers.choice is not None
                self._found(levels, multipliers.choice)
            left = self.wanted() - multipliers.best.bound
            if left <= 0.0 or multipliers.stale >= self.budget.stale_steps or self.late:
                break
            if columns(multipliers.flat, multipliers.best.slack <= left) < SHRUNK * size:
                break
        multipliers.rest()

    def _exact(self, subproblem: Subproblem) -> Subproblem | None:
        """Solves a small subproblem as a 0/1 programme; None if no wanted choice is left."""
        found = solve_ilp(
            subproblem.multipliers.flat, time_limit_s=max(self.deadline - time.monotonic(), 0.0),
            cutoff=self.wanted(), nodes=self.budget.subproblem_nodes,
            work=self.budget.subproblem_work,
        )  # fmt: skip
        self.programmes_work += found.work
        if found.choice is not None:
            self._found(subproblem.levels, found.choice)
        bound = max(subproblem.bound, found.bound)
        none = found.stop is Stop.INFEASIBLE or bound >= self.wanted()
        return None if none else Subproblem(bound, subproblem.multipliers, subproblem.levels)

    def _found(self, levels: tuple[Reduced, ...], choice: Ints) -> None:
        for level in reversed(levels):
            choice = level.lift(choice)
        self.offer(choice)


def heavy_options(
    multipliers: Multipliers, margin: float = np.inf, held: np.ndarray | None = None
) -> Iterator[np.ndarray] | None:
    """Option masks of the two subproblems when one node is split; None if no node uses memory.

    With p_v(i) the memory payment of option i of node v [s] and s_v(i) its slack above the bound, a
    cut between two payments a < b has the merit

        b - a - max( min s_v(i) : p_v(i) <= a,  min s_v(i) : p_v(i) >= b )

    The node and cut with the largest merit are taken.

    Args:
        multipliers: multipliers of the problem, at rest.
        margin: largest slack of an option that counts [s].
        held: mask of the options left, all if None.
    """
    flat = multipliers.flat
    slack = np.where(multipliers.best.slack <= margin, multipliers.best.slack, np.inf)
    if held is not None:
        slack[~held] = np.inf
    best, node, heavy = -np.inf, -1, np.zeros(0, dtype=np.bool_)
    for v, paid in payments(flat, multipliers.multiplier).items():
        order = np.argsort(paid, kind="stable")
        rising, near = paid[order], slack[flat.first[v] : flat.first[v + 1]][order]
        low = np.minimum.accumulate(near)[:-1]
        high = np.minimum.accumulate(near[::-1])[::-1][1:]
        apart = np.diff(rising)
        worth = np.where(apart > 0.0, apart - np.maximum(low, high), -np.inf)
        n = int(np.argmax(worth))
        if worth[n] > best:
            best, node, heavy = float(worth[n]), v, paid > rising[n]
    return None if node < 0 else _halves(flat, node, heavy)


def _halves(flat: Flat, v: int, heavy: np.ndarray) -> Iterator[np.ndarray]:
    for gone in (heavy, ~heavy):
        held = np.ones(len(flat.cost), dtype=np.bool_)
        held[flat.first[v] : flat.first[v + 1]] = ~gone
        yield held


def payments(flat: Flat, multiplier: Floats) -> dict[int, Floats]:
    """Node -> memory payment of each of its options [s], where a multiplier is positive."""
    total = np.concatenate(([0.0], np.cumsum(multiplier)))
    found: dict[int, Floats] = {}
    for k in np.flatnonzero(total[flat.end] > total[flat.begin]).tolist():
        v, at = int(flat.owner[k]), int(flat.use_at[k])
        size = int(flat.sizes[v])
        paid = (total[flat.end[k]] - total[flat.begin[k]]) * flat.use[at : at + size]
        found[v] = found[v] + paid if v in found else paid
    return found
