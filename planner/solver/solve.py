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
from .search.branch_and_bound import WHOLE, Branches
from .search.kernel_options import LOOK, Looks
from .search.large_neighbourhoods import Neighbours
from .search.restarts import (
    are_whole,
    carried_over,
    elsewhere,
    guesses,
    projected,
    some_option_each,
)

ILP_COLUMNS = 60_000  # programmes up to this size are tried as a whole
MOST_COLUMNS = 3_000_000  # larger ones are never written down: they take gigabytes
ILP_SHARE = 0.3  # of the time left
ROUND_S = 5.0  # for a neighbourhood
# Where the number of rounds is limited, everything is shorter.
SHORT_ILP_COLUMNS, SHORT_ILP_NODES, SHORT_ILP_WORK, SHORT_ROUND_WORK = 25_000, 200, 2e5, 1e5
SHORT_STALE = 10
LARGE, SHORT_LARGE = 2_000_000, (6, 0.02)  # columns; steps, share of the gap
FREE_WORK = 400_000  # columns of neighbourhoods beyond which only a share of the rounds is run
GOOD, FEWER = 1e-3, 0.1  # a gap that is worth a share of the rounds only
STALE = 25  # steps of prices without progress before something else is tried
PRICES_SHARE = 0.15  # of the time left, at most, for prices before anything else is tried
MUCH, HALF = 0.8, 0.5  # the share of a problem that is left when much of it went, of wide ones
SMALL, SHRUNK = 100_000, 0.3  # columns; prices of more are left for a share of them
BATCH, STEPS = 6, 4  # neighbourhoods between looks at the bound, steps of prices then
# Splitting: columns times passes, more for the share of a gap that it closed; gaps that are small.
SPLIT_WORK, MORE_WORK, SPLIT_GAP, NO_GAP, USUAL_ROUNDS = 1e9, 7e9, 3e-3, 1e-3, 120
WIDE_WORK, WIDE_GAP = 1.6e10, 7e-3  # of wide problems
WIDE = 300_000  # columns: of more, what prices play with is looked at on the way
INNER_ILP_COLUMNS = 12_000  # that a search of such options tries as a whole
SEARCHED = 1_000_000  # columns: more is not searched by neighbourhoods


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
        *,
        inner: bool = False,
    ) -> None:
        """Takes how far to go; `inner` says that it is a step of another search."""
        super().__init__(options, watch)
        self.tables, self.inner = tables, inner
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
        until = begin + PRICES_SHARE * (self.deadline - begin)
        flat = self.levels[-1].flat
        wide = self._is_wide(flat)
        prices = Prices(flat, price, self.wanted, messages=Messages(flat, single=wide))
        steps = self.options.sweeps * self.options.price_steps // 3
        if self.best is None and prices.round():  # something, however little time is left
            assert prices.choice is not None
            self.offer(prices.choice)
        free, most_stale = self.options.rounds is None, STALE
        prices.careful = free
        looks = Looks(self, prices, self._part) if wide else None
        if not free:
            large = columns(flat) > LARGE and not len(flat.limit)
            most_stale, prices.little = SHORT_LARGE if large else (SHORT_STALE, prices.little)
        while not self.settled and steps > 0 and prices.stale < most_stale:
            steps -= 1
            if prices.step():
                assert prices.choice is not None
                self.offer(prices.choice)
            self.raise_bound(prices.best.bound)
            stalls, due = prices.stale >= most_stale, steps > 0 and steps % LOOK == 0
            if looks and not self.settled and (stalls or (due and not looks.vain)):
                looks.look(last=stalls)
            if (due or not wide) and self._shrinks(prices):
                break
            if free and self.best is not None and time.monotonic() > until:
                break
        prices.rest()
        return prices

    def _is_wide(self, flat: Flat) -> bool:
        return self.options.rounds is not None and not self.inner and columns(flat) > WIDE

    def _part(
        self, options: SolveOptions, flat: Flat, held: np.ndarray, near: Prices, best: Ints | None
    ) -> Ints | None:
        """The best choice found of some options of a problem."""
        inner = _Search(options, self.tables, inner=True)
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
            if not self.options.ilp:
                self.done = True
            elif self.best is None and columns(prices.flat) > MOST_COLUMNS:
                self._guess(prices)
            elif self.best is None or (self._untried and self._small(prices.flat)):
                self._exact(prices.flat)
            elif self._too_wide(prices.flat):
                self.done = True
            elif self.options.rounds is None or self.branched:
                self._search(prices)
            else:
                self._branch(prices)
        return False

    def _too_wide(self, flat: Flat) -> bool:
        limited = self.options.rounds is not None
        return limited and self.branched and columns(flat) > SEARCHED

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
        if self.inner:
            return columns(flat) <= INNER_ILP_COLUMNS
        free = self.options.rounds is None
        return columns(flat) <= (ILP_COLUMNS if free else SHORT_ILP_COLUMNS)

    def _lower(self, prices: Prices) -> bool:
        """Leaves out what no better choice can have; whether that was much."""
        if self.best is None:
            return False
        size = columns(prices.flat)
        many = self.options.rounds is not None and size > SMALL
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
        short = self.best is not None and self.options.rounds is not None
        if self.best is not None and not short:
            left *= ILP_SHARE
        found = solve_ilp(
            flat, time_limit_s=left, cutoff=self.wanted,
            nodes=SHORT_ILP_NODES if short else None, work=SHORT_ILP_WORK if short else np.inf,
        )  # fmt: skip
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
        if self.options.rounds is None:
            return np.inf
        small = self.cost - self.bound <= GOOD * abs(self.cost) or self.work > FREE_WORK
        return self.options.rounds * (FEWER if small else 1.0)

    def _search(self, prices: Prices) -> None:
        """Neighbourhoods until a good part of the gap is closed."""
        assert self.best is not None
        start = projected(self.best, self.levels, prices)
        around = Neighbours(prices.flat, start, prices.best.slack, self.options.seed + self.rounds)
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
                short = self.options.rounds is not None
                if around.stuck:
                    around = elsewhere(prices, around, self.options.seed + self.rounds)
                    worked = 0
                proved = around.improve(
                    self.cost - self.wanted, left if short else min(left, ROUND_S),
                    SHORT_ROUND_WORK if short else np.inf,
                )  # fmt: skip
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
        effort = (self.options.rounds or 0) / USUAL_ROUNDS
        wide = columns(prices.flat) > WHOLE
        looks = Looks(self, prices, self._part)
        seen = looks.focus.read_off if wide else None
        sides = Branches(prices, lambda: self.wanted, self.offer, self.deadline, seen)
        while not self.settled and not sides.ended:
            gap = self.cost - self.bound
            more = MORE_WORK * (1.0 - gap / before) if gap > SPLIT_GAP * abs(self.cost) else 0.0
            most = effort * (WIDE_WORK if wide else SPLIT_WORK + more)
            if gap <= (WIDE_GAP if wide else NO_GAP) * abs(self.cost) or sides.work > most:
                self.done = sides.work > 0.0 and gap <= SPLIT_GAP * abs(self.cost)
                break
            sides.split()
            self.raise_bound(sides.bound)
        if wide and not self.settled and sides.work > 0.0:
            looks.search()
