"""Windows of overlap: one multiplier for each, and a proof for the greater of two sums.

In a window w of the step, communication H_w(x) may run beside work C_w(x); the step is

    T(x) = A(x) + sum_w max(0, H_w(x) - C_w(x))

A(x) being the sum of all other costs. For any multipliers m_w in [0, 1]

    L(m) = min_x A(x) + sum_w m_w (H_w(x) - C_w(x))

is a lower bound of the best step: a problem without windows, whose arrays are mixed. L is concave
and below the plane of every choice x, so that the multipliers to try next are those at which the
lowest of the known planes is highest (Kelley's cutting planes). At m = 0 the answer is optimal if
no window has more communication than work, which is the usual case.

Where the best choice of neither side is good in a window, a bound remains below the best step. The
search then splits: in a part in which H_w <= C_w holds any m_w >= 0 gives a bound, in one in which
H_w >= C_w holds any m_w <= 1.

Sources: Kelley, The cutting-plane method for solving convex programs, J. SIAM 8(4), 1960;
Geoffrion, Lagrangean relaxation for integer programming, Math. Programming Study 2, 1974.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..common.stop import Stop
from .exact.highs import Highs
from .incumbent import EXACT
from .options import SolveOptions
from .problem import Edge, Floats, IntraProblem, IntraSolution

FURTHEST = 3.0  # largest distance of a multiplier beyond [0, 1]
# Share of the way from the best multipliers to the most promising ones that a step goes, and its
# growth once that raised the bound: far multipliers make hard problems with bad choices.
STEP, LONGER = 0.4, 1.5
SHARE_OF_GAP = 0.1  # tolerance of a solve, and progress that counts, as a share of the gap so far
MOST_STALE = 2  # solves in a row without progress
MOST_SOLVES = 60
Plain = Callable[[IntraProblem, SolveOptions], IntraSolution]


@dataclass
class Mixing:
    """Problems without windows, at given multipliers; equal arrays stay one object."""

    problem: IntraProblem
    _arrays: dict[tuple[int, int, float], Floats] = field(
        default_factory=dict[tuple[int, int, float], Floats]
    )

    def at(self, multipliers: Mapping[int, float]) -> IntraProblem:
        """The problem A + sum of multipliers times (H - C).

        Args:
            multipliers: of windows; 0 for those that are absent.
        """
        problem = self.problem
        costs = list(problem.node_cost)
        for x in problem.work:
            if m := multipliers.get(x.window, 0.0):
                costs[x.node] = self._sum(costs[x.node], x.seconds, -m)
        edges = [
            e if e.hidden is None
            else Edge(e.u, e.v, self._sum(e.cost, e.hidden, multipliers.get(e.window, 0.0)))
            for e in problem.edges
        ]  # fmt: skip
        return replace(problem, node_cost=tuple(costs), edges=tuple(edges), work=())

    def _sum(self, array: Floats, more: Floats, share: float) -> Floats:
        if share == 0.0:
            return array
        key = id(array), id(more), share
        if key not in self._arrays:
            self._arrays[key] = array + share * more
        return self._arrays[key]


@dataclass(frozen=True, slots=True)
class _Plane:
    """A + sum_w m_w excess_w of one choice."""

    base: float
    excess: tuple[float, ...]


@dataclass(slots=True)
class _Part:
    """Choices in which some windows are known to have more or less communication than work.

    least, most: limits of the multiplier of each window.
    multipliers: those of the bound.
    bound: lower bound of the part.
    """

    least: tuple[float, ...]
    most: tuple[float, ...]
    multipliers: tuple[float, ...]
    bound: float = -np.inf


def solve_windows(problem: IntraProblem, options: SolveOptions, plain: Plain) -> IntraSolution:
    """Best choice found of a problem with windows, with a proven lower bound.

    Args:
        problem: the problem.
        options: tolerance and limits.
        plain: solver of problems without windows.
    """
    return _Windows(problem, options, plain).run()


class _Windows:
    """The search over multipliers."""

    def __init__(self, problem: IntraProblem, options: SolveOptions, plain: Plain) -> None:
        self.problem, self.options, self.plain = problem, options, plain
        self.mixing = Mixing(problem)
        self.windows = sorted({e.window for e in problem.edges if e.hidden is not None})
        self.deadline = time.monotonic() + options.time_limit_s
        self.begin = time.monotonic()
        columns = sum(map(len, problem.node_cost)) + sum(e.cost.size for e in problem.edges)
        more = min(MOST_SOLVES, int(options.budget.window_columns / max(columns, 1)))
        self.left = max(options.budget.window_solves, more)
        self.planes: list[_Plane] = []
        self.choice: tuple[int, ...] = ()
        self.cost = np.inf
        self.least = -np.inf  # lower bound of all parts that are settled
        self.cut_short = False

    def run(self) -> IntraSolution:
        zero = (0.0,) * len(self.windows)
        first = _Part(zero, (1.0,) * len(self.windows), zero)
        found = self._solve(first, first.least)
        if not found.choice or found.stop is Stop.INTERRUPTED:
            return replace(found, cost=self.cost)
        open_parts, settled = [first], np.inf  # least bound of the parts that are left as they are
        self._raise(first)
        while open_parts and self.left > 0 and not self.cut_short:
            part = min(open_parts, key=lambda p: p.bound)
            if self._close(part.bound) or self._near(part.bound):
                break
            open_parts.remove(part)
            w = self._undecided(part)
            if w is None:
                settled = min(settled, part.bound)
                continue
            for side in self._split(part, w):
                self._raise(side)
                if not self._close(side.bound):
                    open_parts.append(side)
                else:
                    settled = min(settled, side.bound)
        bound = min([settled, self.cost, *(p.bound for p in open_parts)])
        optimal = self._close(bound)
        late = time.monotonic() > self.deadline
        stop = Stop.OPTIMAL if optimal else Stop.TIME_LIMIT if late else Stop.GAP
        return IntraSolution(
            self.choice, self.cost, bound, stop, (), time.monotonic() - self.begin
        )  # fmt: skip

    def _close(self, bound: float) -> bool:
        tolerance = max(self.options.tolerance, EXACT)
        return self.cost - bound <= tolerance * abs(self.cost) or bound >= self.options.cutoff

    def _near(self, bound: float) -> bool:
        """Whether the gap is too small for parts of their own."""
        return self.cost - bound <= self.options.budget.window_gap * abs(self.cost)

    def _solve(self, part: _Part, multipliers: tuple[float, ...]) -> IntraSolution:
        """Solves at some multipliers; takes the choice and the bound."""
        self.left -= 1
        given = dict(zip(self.windows, multipliers, strict=True))
        options = replace(
            self.options, time_limit_s=max(self.deadline - time.monotonic(), 1.0),
            start=self.choice or self.options.start,
        )  # fmt: skip
        if self.choice:
            gap = (self.cost - max(part.bound, 0.0)) / self.cost if self.cost > 0.0 else 0.0
            options = replace(options, tolerance=max(options.tolerance, SHARE_OF_GAP * gap))
        found = self.plain(self.mixing.at(given), options)
        if found.bound > part.bound:
            part.bound, part.multipliers = found.bound, multipliers
        self.cut_short |= found.stop is Stop.INTERRUPTED or time.monotonic() > self.deadline
        if found.choice:
            excess = self.problem.excess(found.choice)
            over = tuple(excess.get(w, 0.0) for w in self.windows)
            cost = self.problem.cost(found.choice)
            self.planes.append(_Plane(cost - sum(max(0.0, x) for x in over), over))
            if cost < self.cost:
                self.choice, self.cost = found.choice, cost
        return found

    def _raise(self, part: _Part) -> None:
        """Raises the bound of a part as long as its multipliers promise more."""
        tolerance = max(self.options.tolerance, EXACT) * abs(self.cost) / 2
        step, stale = STEP, 0
        while self.left > 0 and not self.cut_short and not self._close(part.bound):
            highest, far = self._highest(part)
            if highest - part.bound <= tolerance or stale >= MOST_STALE:
                return
            bound, gap = part.bound, self.cost - part.bound
            moves = zip(part.multipliers, far, strict=True)
            found = self._solve(part, tuple(a + step * (b - a) for a, b in moves))
            if not found.choice:
                if found.stop is Stop.INFEASIBLE:
                    part.bound = np.inf
                return
            if part.bound > bound:
                step = min(1.0, step * LONGER)
            progress = gap - (self.cost - part.bound)
            stale = 0 if progress > SHARE_OF_GAP * gap else stale + 1

    def _highest(self, part: _Part) -> tuple[float, tuple[float, ...]]:
        """The highest point below all planes: its height, and the multipliers there.

        max t  subject to  t - sum_w excess_kw m_w + s_k = base_k,  s_k >= 0, least <= m <= most
        """
        count, rows = len(self.windows), len(self.planes)
        least = np.array(part.least)
        excess = np.array([p.excess for p in self.planes]).reshape(rows, count)
        base = np.array([p.base for p in self.planes]) + excess @ least
        floor = float(base.min()) - float(np.abs(excess).sum())
        scale = max(abs(self.cost), 1e-300)
        # columns: t - floor, then the multipliers less their least values, then the slacks
        cost = np.concatenate(([-1.0], np.zeros(count + rows)))
        upper = np.concatenate(([np.inf], np.array(part.most) - least, np.full(rows, np.inf)))
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
            return part.bound, part.least
        chosen = np.clip(least + values[1 : 1 + count], part.least, part.most)
        return floor + scale * float(values[0]), tuple(chosen.tolist())

    def _undecided(self, part: _Part) -> int | None:
        """The window, not split yet, that leaves most between the best choice and the bound."""
        excess, found = self.problem.excess(self.choice), list[tuple[float, int]]()
        for n, w in enumerate(self.windows):
            if (part.least[n], part.most[n]) == (0.0, 1.0):
                over = excess.get(w, 0.0)
                found.append((max(0.0, over) - part.multipliers[n] * over, -n))
        left, n = max(found, default=(0.0, 0))
        return -n if left > 0.0 else None

    def _split(self, part: _Part, w: int) -> tuple[_Part, _Part]:
        """Less communication than work in window w, and more."""
        high, low = list(part.most), list(part.least)
        high[w], low[w] = 1.0 + FURTHEST, -FURTHEST
        return (
            _Part(part.least, tuple(high), part.multipliers, part.bound),
            _Part(tuple(low), part.most, part.multipliers, part.bound),
        )
