"""Windows of overlap: one multiplier for each, and a proof for the greater of two sums.

In a window w of the step, communication H_w(x) may run beside work C_w(x); the step is

    T(x) = A(x) + sum_w max(0, H_w(x) - C_w(x))

A(x) being the sum of all other costs. For any multipliers m_w in [0, 1]

    L(m) = min_x A(x) + sum_w m_w (H_w(x) - C_w(x))

is a lower bound of the best step: a problem without windows, whose arrays are mixed. L is concave
and below the plane of every choice x, so that the multipliers to try next are those at which the
lowest of the known planes is highest (Kelley's cutting planes). At m = 0 the answer is optimal if
no window has more communication than work, which is the usual case.

Of wide problems message passing bounds L(m) first, and a kernel of options gives choices and the
multipliers at which L is high (`whole_bound.py`). The search goes on without the options that no
better choice can have.

Where some window has choices with much communication and others with much work, but none in
between, the best L stays below the best step. The options of the choices found are searched
together then, all options of small problems, see `exact/window_programme.py`.

Source: Kelley, The cutting-plane method for solving convex programs, J. SIAM 8(4), 1960.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..common.stop import Stop
from .exact.highs import Highs
from .exact.window_programme import combined
from .incumbent import EXACT
from .mixing import Mixing
from .options import SolveOptions
from .problem import IntraProblem, IntraSolution
from .reduce.options_left import OptionsLeft
from .whole_bound import WholeBound

# Share of the way from the best multipliers to the most promising ones that a step goes, and its
# growth once that raised the bound: far multipliers make hard problems with bad choices.
STEP, LONGER = 0.4, 1.5
SHARE_OF_GAP = 0.1  # tolerance of a solve, and progress that counts, as a share of the gap so far
MOST_STALE = 2  # solves in a row without progress
MIXED = 1e-3  # tolerance of large problems that are mixed
NEAREST = 1e-6  # shortest distance of multipliers that are worth a solve
MOST_SOLVES = 60
# Distance of a kernel's bound and that of all options at which kernels end, as a share of the gap
CLOSE = 0.5
WIDER = 4  # columns of the solves of wide problems, against those of the widest that are not
Plain = Callable[[IntraProblem, SolveOptions], IntraSolution]


@dataclass(frozen=True, slots=True)
class _Plane:
    """A + sum_w m_w excess_w of one choice."""

    base: float
    excess: tuple[float, ...]


def solve_windows(
    problem: IntraProblem, options: SolveOptions, plain: Plain, mixing: Mixing | None = None
) -> IntraSolution:
    """Best choice found of a problem with windows, with a proven lower bound.

    Args:
        problem: the problem.
        options: tolerance and limits.
        plain: solver of problems without windows.
        mixing: of an earlier solve of the problem, whose arrays are used again.
    """
    return _Windows(problem, options, plain, mixing or Mixing()).run()


class _Windows:
    """The search over multipliers."""

    def __init__(
        self, problem: IntraProblem, options: SolveOptions, plain: Plain, mixing: Mixing
    ) -> None:
        self.problem, self.options, self.plain, self.mixing = problem, options, plain, mixing
        self.windows = sorted({e.hidden.window for e in problem.edges if e.hidden is not None})
        self.deadline = time.monotonic() + options.time_limit_s
        self.begin = time.monotonic()
        columns = _columns(problem)
        self.large = columns > options.budget.exact_columns
        self.cheap = columns <= options.budget.window_columns
        self.wide = columns > options.budget.narrowed_pairs and options.budget.kernels > 0
        more = min(MOST_SOLVES, int(options.budget.window_columns / max(columns, 1)))
        self.solves = max(options.budget.window_solves, more)
        self.planes: dict[tuple[int, ...], _Plane] = {}  # of the choices found
        self.choice: tuple[int, ...] = ()
        self.cost: float = np.inf
        self.bound: float = -np.inf
        known = dict(options.multipliers)
        # those of the bound
        self.multipliers = tuple(min(max(known.get(w, 0.0), 0.0), 1.0) for w in self.windows)
        self.ended = False  # whether the solve there ended by proof
        self.solved = self.multipliers  # those of the last solve, and its tolerance
        self.tolerance: float = np.inf
        self.stop: Stop | None = None  # why the search was cut short
        self.left: OptionsLeft | None = None  # what is searched, all if None
        self.outside: float = np.inf  # no choice with another option costs less

    def run(self) -> IntraSolution:
        """The search."""
        if self.options.start and self.problem.is_feasible(self.options.start):
            self._take(self.options.start)
        found = self._solve_first()
        if found is not None and not self.choice:
            return found
        step, stale = STEP, 0
        while self.solves > 0 and self.stop is None and not self._close:
            highest, far = self._highest()
            # small problems are solved once more at the same multipliers, with less tolerance
            again = _distance(self.multipliers, far) < NEAREST and self.large
            if (stale >= MOST_STALE and not self.cheap) or again:
                break
            if highest - self.bound <= self.options.tolerance * abs(self.cost) / 2:
                break
            bound, gap = self.bound, self.cost - self.bound
            moves = zip(self.multipliers, far, strict=True)
            here = tuple(a + step * (b - a) for a, b in moves)
            near = _distance(self.solved, here) < NEAREST
            if near and self._tolerance(here) >= self.tolerance:
                break
            self._solve(here)
            if self.bound > bound:
                step = min(1.0, step * LONGER)
            progress = gap - (self.cost - self.bound)
            stale = 0 if progress > SHARE_OF_GAP * gap else stale + 1
        if self.stop is None and not self._close and self._may_go_on:
            self._solve(self.multipliers, fully=True)
        if self.stop is None and not self._close:
            self._combine()
        stop = self.stop or (Stop.OPTIMAL if self._proved else Stop.GAP)
        multipliers = tuple(zip(self.windows, self.multipliers, strict=True))
        bound, seconds = min(self.bound, self.cost), time.monotonic() - self.begin
        return IntraSolution(self.choice, self.cost, bound, stop, (), seconds, multipliers)

    def _solve_first(self) -> IntraSolution | None:
        """The first solve, if one is needed, and options left out of wide problems.

        Without multipliers the first answer is the best as a rule, so that kernels come after it.
        """
        first, found = self.multipliers, None
        if self.wide and any(first):
            first = self._narrow()
        if self.stop is None and not self._close:
            found = self._solve(first)
        open_ = self.choice and self.stop is None and not self._close
        if open_ and self.wide and self.left is None:
            self._narrow()
        return found

    @property
    def _proved(self) -> bool:
        gap, tolerance = self.cost - self.bound, max(self.options.tolerance, EXACT)
        return bool(self.choice) and gap <= tolerance * abs(self.cost)

    @property
    def _close(self) -> bool:
        return self._proved or self.bound >= self.options.cutoff

    @property
    def _may_go_on(self) -> bool:
        """Whether a full search at the multipliers of the bound may find more."""
        may = self.options.budget.searches(memory_binds=True)
        return may and not self.ended and not self.options.work.exhausted

    def _solve(self, multipliers: tuple[float, ...], *, fully: bool = False) -> IntraSolution:
        """Solves at some multipliers; takes the choice and the bound.

        Args:
            multipliers: of the windows.
            fully: whether to search on where memory limits bind.
        """
        self.solves -= 1
        self.solved, self.tolerance = multipliers, self._tolerance(multipliers)
        found = self._found(multipliers, self.tolerance, fully=fully)
        if min(found.bound, self.outside) > self.bound:
            self.bound, self.multipliers = min(found.bound, self.outside), multipliers
            self.ended = found.stop is Stop.OPTIMAL
        if found.stop is Stop.INTERRUPTED:
            self.stop = Stop.INTERRUPTED
        elif time.monotonic() > self.deadline:
            self.stop = Stop.TIME_LIMIT
        elif self.options.work.exhausted:
            self.solves = 0
        if found.choice:
            self._take(found.choice)
        return found

    def _take(self, choice: tuple[int, ...]) -> None:
        """Takes a choice that fits: its plane, and the choice if it is the best."""
        excess = self.problem.excess(choice)
        over = tuple(excess.get(w, 0.0) for w in self.windows)
        cost = self.problem.cost(choice, excess)
        self.planes[choice] = _Plane(cost - sum(max(0.0, x) for x in over), over)
        if cost < self.cost:
            self.choice, self.cost = choice, cost

    def _tolerance(self, multipliers: tuple[float, ...]) -> float:
        """Tolerance of the next solve, at some multipliers."""
        tolerance = self.options.tolerance
        if self.large and any(multipliers):
            tolerance = max(tolerance, MIXED)
        if self.choice and self.cost > 0.0 and self.bound > -np.inf:
            gap = (self.cost - max(self.bound, 0.0)) / self.cost
            tolerance = max(tolerance, SHARE_OF_GAP * gap)
        return tolerance

    def _found(
        self, multipliers: tuple[float, ...], tolerance: float, *, fully: bool
    ) -> IntraSolution:
        """The solution at some multipliers, among the options that are left."""
        given = dict(zip(self.windows, multipliers, strict=True))
        start, problem = self.choice or self.options.start, self.problem
        if self.left is not None:
            start, problem = self.left.lowered(start), self.left.problem
        left_s = max(self.deadline - time.monotonic(), 1.0)
        budget = replace(self.options.budget, exact_if_memory_binds=fully)
        options = replace(
            self.options, budget=budget, time_limit_s=left_s, start=start, tolerance=tolerance
        )
        found = self.plain(self.mixing.at(problem, given), options)
        if self.left is None or not found.choice:
            return found
        return replace(found, choice=self.left.lift(found.choice))

    def _narrow(self) -> tuple[float, ...]:
        """Leaves out the options that no choice better than the best known has.

        Kernels find choices, and the multipliers at which the bound of all options is high: the
        nearer the two are, the fewer options are left.

        Returns:
            Multipliers of the last kernel.
        """
        whole = WholeBound(self.problem, self.options, self.mixing)
        multipliers = self.multipliers
        for n in range(self.options.budget.kernels):
            if not self._proves(whole, multipliers):
                return multipliers
            kernel = whole.kernel(self.choice)
            known = tuple(zip(self.windows, multipliers, strict=True))
            start = kernel.lowered(self.choice)
            seed = self.options.seed + n
            options = replace(self.options, start=start, multipliers=known, seed=seed)
            inner = _Windows(kernel.problem, options, self.plain, Mixing())
            inner.wide, inner.bound = False, self.bound  # the bound holds for some options too
            found = inner.run()
            self.stop = found.stop if found.stop is Stop.INTERRUPTED else None
            if not found.choice or self.stop is not None:
                return multipliers
            self._take(kernel.lift(found.choice))
            multipliers = inner.multipliers
            if found.bound - self.bound <= CLOSE * (self.cost - self.bound):
                break
        self.outside = self.cost - max(self.options.tolerance, EXACT) * abs(self.cost) / 2
        self.left = whole.near(self.outside + EXACT * abs(self.cost), self.choice)
        # Four times as many columns altogether as all solves of the widest problem that has no
        # kernels: for twelve layers of GPT-175B written out, of 1e7 columns, seven solves that take
        # 8 s with a gap of 7 %; two leave 12 %, and twice as many change nothing.
        most = WIDER * self.solves * self.options.budget.narrowed_pairs
        most /= _columns(self.left.problem)
        self.solves = min(self.solves, max(1, int(most)))
        return multipliers

    def _combine(self) -> None:
        """The best choice of what is searched, of large problems among the choices found."""
        problem, most = self.problem, self.options.budget.combined_columns
        if not self.choice or not most:
            return
        searched = problem if self.left is None else self.left.problem
        whole = _columns(searched) <= most
        first = np.cumsum([0, *map(len, problem.node_cost)])
        held = np.full(int(first[-1]), whole and self.left is None)
        for start, kept in zip(first, self.left.kept if self.left and whole else (), strict=False):
            held[start + kept] = True
        for choice in self.planes:
            held[first[:-1] + np.array(choice)] = True
        left_s = max(self.deadline - time.monotonic(), 1.0)
        options = replace(self.options, time_limit_s=left_s)
        given = dict(zip(self.windows, self.multipliers, strict=True))
        found = combined(problem, held, self.cost, given, options)
        if found.choice:
            self._take(found.choice)
        if whole:
            self.bound = max(self.bound, min(found.bound, self.outside, self.cost))

    def _proves(self, whole: WholeBound, multipliers: tuple[float, ...]) -> bool:
        """Bounds all options at some multipliers; whether kernels are worth while then."""
        given = dict(zip(self.windows, multipliers, strict=True))
        try:
            whole.reduce(given)
            if not whole.pairs or whole.pairs <= self.options.budget.narrowed_pairs:
                return False
            whole.prove(self.cost)
        except KeyboardInterrupt:
            if not self.options.interruptible:
                raise
            self.stop = Stop.INTERRUPTED
            return False
        if whole.bound > self.bound:
            self.bound, self.multipliers, self.ended = whole.bound, multipliers, False
        return not self._close

    def _highest(self) -> tuple[float, tuple[float, ...]]:
        """The highest point below all planes: its height, and the multipliers there.

        max t  subject to  t - sum_w excess_kw m_w + s_k = base_k,  s_k >= 0,  0 <= m <= 1
        """
        count, rows = len(self.windows), len(self.planes)
        excess = np.array([p.excess for p in self.planes.values()]).reshape(rows, count)
        base = np.array([p.base for p in self.planes.values()])
        floor = float(base.min()) - float(np.abs(excess).sum())
        scale = max(abs(self.cost), 1e-300)
        # columns: t - floor, then the multipliers, then the slacks
        cost = np.concatenate(([-1.0], np.zeros(count + rows)))
        upper = np.concatenate(([np.inf], np.ones(count), np.full(rows, np.inf)))
        table = np.hstack((np.ones((rows, 1)), -excess / scale, np.eye(rows)))
        where = table != 0.0
        starts = np.concatenate(([0], np.cumsum(where.sum(axis=0)))).astype(np.int64)
        index = np.nonzero(where.T)[1].astype(np.int64)
        programme = Highs(
            cost, rows, (base - floor) / scale, starts, index, table.T[where.T],
            np.zeros(len(cost), dtype=np.bool_), upper,
        )  # fmt: skip
        programme.run(self.deadline + 1.0)
        values = programme.values()
        if values is None:
            return self.bound, self.multipliers
        chosen = np.clip(values[1 : 1 + count], 0.0, 1.0)
        return floor + scale * float(values[0]), tuple(chosen.tolist())


def _distance(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The greatest difference of two multipliers of a window."""
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def _columns(problem: IntraProblem) -> int:
    """Variables of the 0/1 programme."""
    return sum(map(len, problem.node_cost)) + sum(e.table.size for e in problem.edges)
