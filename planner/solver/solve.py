"""The portfolio: reduce, bound by messages and prices, fix, solve exactly, search neighbourhoods.

1. Reductions (`reduce/reduce.py`). What is left without limits and of small width is eliminated
exactly.
2. Message passing with prices of memory: a bound from below, and a choice at every step.
3. Options and pairs that no better choice can have are left out, and the rest is reduced again;
   if much went, back to 2 with the prices found.
   Of wide problems, the options that prices play with are solved as a problem of their own
   (`search/kernel_options.py`), again and again as prices become better.
4. The 0/1 programme, if what is left is small: it finds the optimum or proves it.
5. Where the number of rounds is limited, branch and bound over who uses memory
(`search/branch_and_bound.py`).
6. Large neighbourhoods of the best choice, solved exactly, larger and larger, and of other choices
   once they find nothing more; when they have closed a good part of the gap, back to 3.

The search ends as soon as the gap is within the tolerance.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ..common.stop import Stop
from .arrays import Flat, Ints, flatten_problem
from .bound.memory_multipliers import Prices
from .bound.message_passing import Messages
from .bound.reduced_cost_fixing import cheap_enough
from .exact.bucket_elimination import Tables, eliminated
from .exact.components import decide_apart
from .exact.ilp import columns, solve_ilp
from .incumbent import EXACT, Incumbent
from .numba_warmup import warm
from .options import SolveOptions as SolveOptions
from .problem import Floats, IntraProblem, IntraSolution, Point
from .reduce.reduce import Reduced, reduce
from .reduce.reduction_cache import Again
from .search.branch_and_bound import Branches
from .search.kernel_options import Looks
from .search.large_neighbourhoods import Neighbours
from .search.restarts import (
    are_whole,
    carried_over,
    elsewhere,
    guesses,
    projected,
    some_option_each,
)

LARGE_LITTLE = 0.02  # share of the gap, of large problems without memory limits
GOOD = 1e-3  # a gap that is worth a share of the rounds only
MUCH, HALF = 0.8, 0.5  # the share of a problem that is left when much of it went, of wide ones
WIDE = 300_000  # columns
SMALL, SHRUNK = 100_000, 0.3  # columns; multipliers of more are left for a share of them
BATCH, STEPS = 6, 4  # neighbourhoods between looks at the bound, steps of prices then
SPLIT_GAP, NO_GAP, WIDE_GAP = 3e-3, 1e-3, 7e-3  # gaps that are small, also of wide problems


def solve(
    problem: IntraProblem,
    options: SolveOptions | None = None,
    tables: Tables | None = None,
    watch: Callable[[Point], None] | None = None,
    again: Again | None = None,
) -> IntraSolution:
    """Best choice found, with a proven lower bound and the reason to stop.

    The choice is empty if nothing fits (`INFEASIBLE`: proved) or nothing was found that does
    (`TIME_LIMIT`, or `GAP` where all was tried).

    Args:
        problem: what to solve.
        options: how far to go.
        tables: remembered by elimination from one problem to the next.
        watch: called with every improvement.
        again: remembers the reductions of a problem that is solved more than once.
    """
    options = options or SolveOptions()
    if not problem.size:
        return IntraSolution((), 0.0, 0.0, Stop.OPTIMAL)
    warm()
    search = _Search(options, tables or Tables(), watch)
    stop = None
    try:
        if again is None:
            search.run(flatten_problem(problem))
        else:
            flat, top = again.reduced(problem)
            search.run(flat, top=top)
    except KeyboardInterrupt:
        if not options.interruptible:
            raise
        stop = Stop.INTERRUPTED
    return search.answer(problem, stop)


class _Search(Incumbent):
    """The steps of the portfolio on one problem."""

    def __init__(
        self,
        options: SolveOptions,
        tables: Tables,
        watch: Callable[[Point], None] | None = None,
    ) -> None:
        super().__init__(options, watch)
        self.tables, self.budget = tables, options.budget
        self.rounds, self.work, self.branched = 0, 0, False
        self.tried = np.inf  # cost at which the whole programme was given up

    # --- the search ---

    def run(
        self,
        flat: Flat,
        held: np.ndarray | None = None,
        known: Prices | None = None,
        best: Ints | None = None,
        top: Reduced | None = None,
    ) -> None:
        """Searches a problem.

        Args:
            flat: the problem.
            held: options to consider, all if None.
            known: prices of the same problem, whose prices of memory are where to begin.
            best: a choice to be better than.
            top: what the problem was reduced to, if that is known.
        """
        self.original = flat
        self.whole = are_whole(flat)
        if best is not None:
            self.offer(best)
        top = top or reduce(flat, held)
        if self.options.start and not len(top.flat.limit):  # else prices of memory lead further
            self.offer(np.array(self.options.start))
        self.levels.append(top)
        if top.broken:
            self.infeasible = True
            return
        found = decide_apart(top.flat, self.tables, self.deadline)
        if found is not None:
            top.take(*found)
            top.tidy()
        if self._decided(top.flat):
            return
        price = None if known is None else carried_over(known, top.flat)
        while not self.settled:
            prices = self._bound(price)
            if self.settled or not self._fix(prices):
                continue
            price = carried_over(prices, self.levels[-1].flat)

    def _decided(self, flat: Flat) -> bool:
        """Whether nothing is left to choose, or elimination finds the best."""
        choice = eliminated(flat, self.tables, self.deadline)
        if choice is None:
            return False
        self.offer(choice)
        self.raise_bound(self.cost)
        self.done = True
        return True

    def _bound(self, price: Floats | None) -> Prices:
        """Message passing on the current level until it stalls."""
        begin = time.monotonic()
        budget, flat = self.budget, self.levels[-1].flat
        until = begin + budget.steps_share * (self.deadline - begin)
        wide = columns(flat) > budget.wide_columns
        messages = Messages(flat, single=wide)
        prices = Prices(flat, price, self.wanted, budget=budget, messages=messages)
        steps, most_stale = budget.steps, budget.stale_steps
        if self.best is None and prices.round():  # something, however little time is left
            assert prices.choice is not None
            self.offer(prices.choice)
        looks = Looks(self, prices, self._part) if wide else None
        if columns(flat) > budget.large_columns and not len(flat.limit):
            most_stale, prices.little = budget.large_stale_steps, LARGE_LITTLE
        while not self.settled and steps > 0 and prices.stale < most_stale:
            steps -= 1
            if prices.step():
                assert prices.choice is not None
                self.offer(prices.choice)
            self.raise_bound(prices.best.bound)
            stalls = prices.stale >= most_stale
            due = steps > 0 and steps % budget.look_steps == 0
            if looks and not self.settled and (stalls or (due and not looks.vain)):
                looks.look(last=stalls)
            if (due or not wide) and self._shrinks(prices):
                break
            if self.best is not None and time.monotonic() > until:
                break
        prices.rest()
        return prices

    def _part(
        self, options: SolveOptions, flat: Flat, held: np.ndarray, near: Prices, best: Ints | None
    ) -> Ints | None:
        """The best choice found of some options of a problem."""
        inner = _Search(options, self.tables)
        inner.run(flat, held, near, best)
        return inner.best

    def _shrinks(self, prices: Prices) -> bool:
        """Whether a large problem has become a small one: what is dear can go at once."""
        size = columns(prices.flat)
        return self.best is not None and size >= SMALL and self._left(prices) < SHRUNK * size

    def _left(self, prices: Prices) -> int:
        """Columns without what is too dear."""
        return columns(prices.flat, prices.best.slack <= self.margin(prices.best.bound))

    def _fix(self, prices: Prices) -> bool:
        """Goes one level down, where much can be left out; else tries all else on this one."""
        while not self.settled:
            if self._lower(prices):
                return True
            if not self.budget.exact:
                self.done = True
            elif self.best is None and columns(prices.flat) > self.budget.written_columns:
                self._guess(prices)
            elif self.best is None or (self._untried and self._small(prices.flat)):
                self._exact(prices.flat)
            elif self._too_wide(prices.flat):
                self.done = True
            elif self.branched or not self.budget.split_work:
                self._search(prices)
            else:
                self._branch(prices)
        return False

    def _too_wide(self, flat: Flat) -> bool:
        return self.branched and columns(flat) > self.budget.searched_columns

    def _guess(self, prices: Prices) -> None:
        """Something that fits, where the programme would be too large."""
        for choice in guesses(prices, self.options.seed):
            self.offer(choice)
            if self.best is not None or self.late:
                return
        self.done = True

    @property
    def _untried(self) -> bool:
        """Whether much better is known than when the whole programme was given up."""
        if self.tried == np.inf:
            return True
        return self.cost - self.bound < MUCH / 2 * (self.tried - self.bound)

    def _small(self, flat: Flat) -> bool:
        return columns(flat) <= self.budget.exact_columns

    def _lower(self, prices: Prices) -> bool:
        """Leaves out what no better choice can have; whether that was much."""
        if self.best is None:
            return False
        size = columns(prices.flat)
        many = size > self.budget.fixing_columns
        if many and self._left(prices) > (HALF if size > WIDE else MUCH) * size:
            return False
        flat, held = cheap_enough(prices.messages, prices.best, self.margin(prices.best.bound))
        below = reduce(flat, held) if some_option_each(flat, held) else None
        if below is None or below.broken:
            self.raise_bound(self.wanted)
            return False
        if columns(below.flat) > MUCH * size:
            return False
        self.levels.append(below)
        if not below.flat.size:
            self.offer(np.zeros(0, dtype=np.int64))
            self.raise_bound(min(self.wanted, below.flat.constant))
            self.done = True
        return True

    def _exact(self, flat: Flat) -> None:
        """The 0/1 programme of all that is left.

        Where a proof is asked for, what it finds is only believed to be the best when it finds
        nothing better: its bound is as exact as the tolerances of its solver.
        """
        left, before = self.deadline - time.monotonic(), self.cost
        budget, nodes, work = self.budget, np.inf, np.inf
        if self.best is not None:
            nodes, work, left = budget.exact_nodes, budget.exact_work, budget.exact_share * left
        found = solve_ilp(flat, time_limit_s=left, cutoff=self.wanted, nodes=nodes, work=work)
        if found.choice is not None:
            self.offer(found.choice)
        if found.stop is Stop.INFEASIBLE:
            if self.best is None:
                self.infeasible = True
            else:
                self.raise_bound(self.wanted)
            return
        again = self.options.tolerance < EXACT and self.cost < before
        if found.stop is Stop.OPTIMAL and not again:
            self.raise_bound(found.bound)
        if found.stop is not Stop.OPTIMAL:
            self.raise_bound(found.bound)
            self.done = self.best is None
            self.tried = self.cost  # not again, unless something better is found meanwhile

    @property
    def _most_rounds(self) -> float:
        budget, small = self.budget, self.cost - self.bound <= GOOD * abs(self.cost)
        small = small or self.work > budget.all_rounds_columns
        return budget.rounds * (budget.small_gap_share if small else 1.0)

    def _search(self, prices: Prices) -> None:
        """Neighbourhoods until a good part of the gap is closed."""
        assert self.best is not None
        start = projected(self.best, self.levels, prices)
        seed = self.options.seed + self.rounds
        around = Neighbours(prices.flat, start, prices.best.slack, seed, self.budget)
        gap, worked = self.cost - prices.best.bound, 0
        while not self.settled:
            for _ in range(BATCH):
                if self.settled:
                    return
                if self.rounds >= self._most_rounds:
                    self.done = True
                    return
                self.rounds += 1
                left = self.deadline - time.monotonic()
                if around.stuck:
                    around = elsewhere(prices, around, self.options.seed + self.rounds)
                    worked = 0
                left = min(left, self.budget.round_s)
                proved = around.improve(self.cost - self.wanted, left)
                self.work += around.work - worked
                worked = around.work
                self.offer(around.choice)
                if proved and around.cost <= self.cost:
                    self.raise_bound(self.wanted)
            if self.cost - prices.best.bound < MUCH * gap:
                return
            for _ in range(STEPS if prices.improving else 0):
                prices.step()
            self.raise_bound(prices.best.bound)
            around.slack = prices.best.slack

    def _branch(self, prices: Prices) -> None:
        """Splits the problem by who uses memory, as long as that closes the gap."""
        self.branched = True
        before = self.cost - self.bound
        budget = self.budget
        wide = columns(prices.flat) > budget.whole_columns
        looks = Looks(self, prices, self._part)
        seen = looks.focus.read_off if wide else None
        sides = Branches(prices, lambda: self.wanted, self.offer, self.deadline, seen, budget)
        while not self.settled and not sides.ended:
            gap = self.cost - self.bound
            closed = 1.0 - gap / before if gap > SPLIT_GAP * abs(self.cost) else 0.0
            most = budget.most_split_work(closed, wide=wide)
            if gap <= (WIDE_GAP if wide else NO_GAP) * abs(self.cost) or sides.work > most:
                self.done = sides.work > 0.0 and gap <= SPLIT_GAP * abs(self.cost)
                break
            sides.split()
            self.raise_bound(sides.bound)
        if wide and not self.settled and sides.work > 0.0:
            looks.search()
