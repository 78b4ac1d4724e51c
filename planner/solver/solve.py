"""The portfolio: reduce, bound, fix, solve exactly, search neighbourhoods.

1. Reductions (`reduce/reduce.py`); elimination of what is left without limits and of small width.
2. Message passing with memory multipliers: a lower bound, and a choice at every step.
3. Options and pairs that no better choice can have are left out, and the rest is reduced again;
   if much went, back to 2 with the multipliers found.
   Kernel search on wide problems (`search/kernel_search.py`): the options of any rounding form a
   restricted problem, which is solved anew as multipliers improve.
4. Branch and bound over the nodes that use much memory (`search/branch_and_bound.py`), where the
   number of rounds is limited.
5. The 0/1 programme, if the remaining problem is small: it finds the optimum or proves it.
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
from .bound.memory_multipliers import Multipliers
from .bound.message_passing import Messages
from .bound.reduced_cost_fixing import cheap_enough
from .exact.bucket_elimination import Tables, eliminated
from .exact.components import decide_apart
from .exact.ilp import columns, solve_ilp
from .incumbent import EXACT, Incumbent
from .numba_processes import warm
from .option_classes import Classes, pairs_of, solve_by_classes
from .options import SolveOptions as SolveOptions
from .problem import Floats, IntraProblem, IntraSolution, Point
from .reduce.reduce import Reduced, reduce
from .reduce.reduction_cache import ReductionCache
from .search.branch_and_bound import Branches
from .search.kernel_search import KernelSearch
from .search.large_neighbourhoods import Neighbours
from .search.restarts import (
    are_whole,
    carried_over,
    elsewhere,
    guesses,
    projected,
    some_option_each,
)
from .search.subproblems import SWEPT
from .windows import solve_windows

LARGE_LITTLE = 0.02  # share of the gap, of large problems without memory limits
GOOD = 1e-3  # a gap that is worth a share of the rounds only
MUCH, HALF = 0.8, 0.5  # the share of a problem that is left when much of it went, of wide ones
SMALL, SHRUNK = 100_000, 0.3  # columns; multipliers of more are left for a share of them
BATCH, STEPS = 6, 4  # neighbourhoods between two updates of the bound, steps of multipliers in each
SPLIT_GAP, NO_GAP, WIDE_GAP = 3e-3, 1e-3, 7e-3  # gaps that are small, also of wide problems


def solve(
    problem: IntraProblem,
    options: SolveOptions | None = None,
    tables: Tables | None = None,
    watch: Callable[[Point], None] | None = None,
    reductions: ReductionCache | None = None,
    classes: Classes | None = None,
) -> IntraSolution:
    """Best choice found, with a proven lower bound and the reason to stop.

    The choice is empty if nothing fits (`INFEASIBLE`: proved) or nothing was found that does
    (`TIME_LIMIT`, or `GAP` where all was tried).

    Args:
        problem: the problem.
        options: tolerance and limits.
        tables: results of elimination, shared by several problems.
        watch: receiver of every improvement.
        reductions: cache for a problem that is solved more than once.
        classes: of options that cost about the same, by which wide problems are solved.
    """
    options = options or SolveOptions()
    if not problem.size:
        return IntraSolution((), 0.0, 0.0, Stop.OPTIMAL)
    if classes is not None and pairs_of(problem) > options.budget.narrowed_pairs:
        return solve_by_classes(
            problem, classes, options, lambda p, o, w: solve(p, o, tables, w, ReductionCache()),
            watch,
        )  # fmt: skip
    if any(edge.hidden is not None for edge in problem.edges):
        return solve_windows(
            problem, options, lambda mixed, limits: solve(mixed, limits, tables, watch, reductions),
            reductions.mixing if reductions else None,
        )  # fmt: skip
    warm()
    search = _Search(options, tables or Tables(), watch)
    stop = None
    try:
        if reductions is None:
            search.run(flatten_problem(problem))
        else:
            flat, top = reductions.reduced(problem)
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
        known: Multipliers | None = None,
        best: Ints | None = None,
        top: Reduced | None = None,
    ) -> None:
        """Searches a problem.

        Args:
            flat: the problem.
            held: mask of the options to consider, all if None.
            known: multipliers of the same problem, to start from.
            best: a known choice.
            top: the reduced problem, if known.
        """
        self.original = flat
        self.whole = are_whole(flat)
        if best is not None:
            self.offer(best)
        top = top or reduce(flat, held)
        if self.options.start and not len(top.flat.limit):  # else multipliers lead further
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
        first = None if known is None else carried_over(known, top.flat)
        while not self.settled:
            multipliers = self._bound(first)
            if self.settled or not self._fix(multipliers):
                continue
            first = carried_over(multipliers, self.levels[-1].flat)

    def _decided(self, flat: Flat) -> bool:
        """Whether nothing is left to choose, or elimination finds the best."""
        choice = eliminated(flat, self.tables, self.deadline)
        if choice is None:
            return False
        self.offer(choice)
        self.raise_bound(self.cost)
        self.done = True
        return True

    def _bound(self, first: Floats | None) -> Multipliers:
        """Message passing on the current level until it stalls."""
        begin = time.monotonic()
        budget, flat = self.budget, self.levels[-1].flat
        until = begin + budget.steps_share * (self.deadline - begin)
        wide = columns(flat) > budget.wide_columns
        messages = Messages(flat, single=wide)
        multipliers = Multipliers(flat, first, self.wanted, budget=budget, messages=messages)
        steps, most_stale = budget.steps, budget.stale_steps
        step_work = SWEPT * columns(flat)
        if self.best is None and multipliers.round():  # something, however little time is left
            assert multipliers.choice is not None
            self.offer(multipliers.choice)
        kernel_search = KernelSearch(self, multipliers, self._part) if wide else None
        if columns(flat) > budget.large_columns and not len(flat.limit):
            most_stale, multipliers.little = budget.large_stale_steps, LARGE_LITTLE
        while not self.settled and steps > 0 and multipliers.stale < most_stale:
            steps -= 1
            self.options.work.done += step_work
            if multipliers.step():
                assert multipliers.choice is not None
                self.offer(multipliers.choice)
            self.raise_bound(multipliers.best.bound)
            stalls = multipliers.stale >= most_stale
            due = steps > 0 and steps % budget.reading_steps == 0
            if (
                kernel_search
                and not self.settled
                and (stalls or (due and not kernel_search.unproductive))
            ):
                kernel_search.grow(last=stalls)
            if (due or not wide) and self._shrinks(multipliers):
                break
            if self.best is not None and time.monotonic() > until:
                break
        multipliers.rest()
        return multipliers

    def _part(
        self,
        options: SolveOptions,
        flat: Flat,
        held: np.ndarray,
        near: Multipliers,
        best: Ints | None,
    ) -> Ints | None:
        """The best choice found of some options of a problem."""
        inner = _Search(options, self.tables)
        inner.run(flat, held, near, best)
        return inner.best

    def _shrinks(self, multipliers: Multipliers) -> bool:
        """Whether a large problem would be small without the options that cost too much."""
        size = columns(multipliers.flat)
        return self.best is not None and size >= SMALL and self._left(multipliers) < SHRUNK * size

    def _left(self, multipliers: Multipliers) -> int:
        """Columns without the options that cost too much."""
        held = multipliers.best.slack <= self.margin(multipliers.best.bound)
        return columns(multipliers.flat, held)

    def _fix(self, multipliers: Multipliers) -> bool:
        """Goes one level down, where much can be left out; else tries all else on this one."""
        while not self.settled:
            if self._lower(multipliers):
                return True
            self.take_known()  # where message passing found nothing that fits
            binds = self.best is not None and len(multipliers.flat.limit) > 0
            if not self.budget.searches(memory_binds=binds):
                self.done = True
            elif self.best is None and columns(multipliers.flat) > self.budget.written_columns:
                self._guess(multipliers)
            elif self.best is None:
                self._exact(multipliers.flat)
            elif not self.branched and self.budget.split_work:
                self._branch(multipliers)
            elif self._untried(multipliers.flat):
                self._exact(multipliers.flat)
            elif self.branched and columns(multipliers.flat) > self.budget.searched_columns:
                self.done = True
            else:
                self._search(multipliers)
        return False

    def _guess(self, multipliers: Multipliers) -> None:
        """Something that fits, where the programme would be too large."""
        for choice in guesses(multipliers, self.options.seed):
            self.offer(choice)
            if self.best is not None or self.late:
                return
        self.done = True

    def _untried(self, flat: Flat) -> bool:
        """Whether the programme of all that is left is small, and not given up with such a gap."""
        if columns(flat) > self.budget.exact_columns:
            return False
        if self.tried == np.inf:
            return True
        return self.cost - self.bound < MUCH / 2 * (self.tried - self.bound)

    def _lower(self, multipliers: Multipliers) -> bool:
        """Leaves out what no better choice can have; whether that was much."""
        if self.best is None:
            return False
        size = columns(multipliers.flat)
        many = size > self.budget.fixing_columns
        share = HALF if size > self.budget.wide_columns else MUCH
        if many and self._left(multipliers) > share * size:
            return False
        flat, held = cheap_enough(
            multipliers.messages, multipliers.best, self.margin(multipliers.best.bound)
        )
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
        self.options.work.done += found.work
        if found.choice is not None:
            self.offer(found.choice)
        if found.stop is Stop.INFEASIBLE:
            if self.best is None:
                self.infeasible = True
            else:
                self.raise_bound(self.wanted)
            return
        doubtful = self.options.tolerance < EXACT and self.cost < before
        if found.stop is Stop.OPTIMAL and not doubtful:
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

    def _search(self, multipliers: Multipliers) -> None:
        """Neighbourhoods until a good part of the gap is closed."""
        assert self.best is not None
        start = projected(self.best, self.levels, multipliers)
        seed = self.options.seed + self.rounds
        around = Neighbours(multipliers.flat, start, multipliers.best.slack, seed, self.budget)
        gap, worked, programmes = self.cost - multipliers.best.bound, 0, 0.0
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
                    around = elsewhere(multipliers, around, self.options.seed + self.rounds)
                    worked, programmes = 0, 0.0
                left = min(left, self.budget.round_s)
                proved = around.improve(self.cost - self.wanted, left)
                self.work += around.work - worked
                worked = around.work
                self.options.work.done += around.programmes_work - programmes
                programmes = around.programmes_work
                self.offer(around.choice)
                if proved and around.cost <= self.cost:
                    self.raise_bound(self.wanted)
            if self.cost - multipliers.best.bound < MUCH * gap:
                return
            for _ in range(STEPS if multipliers.improving else 0):
                multipliers.step()
            self.raise_bound(multipliers.best.bound)
            around.slack = multipliers.best.slack

    def _branch(self, multipliers: Multipliers) -> None:
        """Branch and bound, as long as that closes the gap.

        It ends the search at a small gap, unless the programme of all that is left is small.
        """
        self.branched = True
        before = self.cost - self.bound
        budget = self.budget
        wide = columns(multipliers.flat) > budget.whole_columns
        kernel_search = KernelSearch(self, multipliers, self._part)
        seen = kernel_search.kernel.sample_at if wide else None
        branches = Branches(
            multipliers, lambda: self.wanted, self.offer, self.deadline, seen, budget
        )
        while not self.settled and not branches.ended:
            gap = self.cost - self.bound
            closed = 1.0 - gap / before if gap > SPLIT_GAP * abs(self.cost) else 0.0
            most = budget.most_split_work(closed, wide=wide)
            if gap <= (WIDE_GAP if wide else NO_GAP) * abs(self.cost) or branches.all_work > most:
                small = branches.work > 0.0 and gap <= SPLIT_GAP * abs(self.cost)
                self.done = small and not self._untried(multipliers.flat)
                break
            worked = branches.all_work
            branches.split()
            self.options.work.done += branches.all_work - worked
            self.raise_bound(branches.bound)
        if wide and not self.settled and branches.work > 0.0:
            kernel_search.search()
