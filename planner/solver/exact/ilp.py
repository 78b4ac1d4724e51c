"""The problem as a 0/1 programme, solved by HiGHS.

    min   sum_v c_v . s_v + sum_uv R_uv . e_uv                  objective
    s.t.  sum_i s_v[i] = 1                         each v       one option
          sum_j e_uv[i, j] = s_u[i]                each uv, i   edges agree with their ends
          sum_i e_uv[i, j] = s_v[j]                each uv, j
          sum_v m_v . s_v <= limit                 each moment that a solution broke
          sum_v s_v[k_v] <= n - 1                  n options that are too much together

A window w of overlap (`window_programme.py`) adds a column t_w >= 0 to the objective and the row
x_w - t_w <= 0, x_w being its hidden seconds less those of its work.

Edge variables are continuous: with s integral the marginal rows make them integral. The rows are
the strong form; the weak one, e >= s_u + s_v - 1, has the same integer points and a useless
relaxation. The relaxation comes first: it is often integral. Memory rows are added only when a
solution breaks them; the last kind only where a solution breaks a memory row by less than the
solver's tolerance. Forbidden pairs have no variable.

Costs are scaled to the solver's tolerances, which are absolute: seconds would drown in them.

Source: Zheng et al., Alpa, OSDI 2022, section 4.2, with marginal rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...common.stop import Stop
from ..arrays import Flat, Ints, ranges
from ..bound.memory_multipliers import worst
from ..bound.message_passing import Messages
from ..problem import Floats
from ..reduce.arc_consistency import consistent
from ..work import PROGRAMME
from .highs import Highs

TOP_COST = 1000.0  # the largest cost of a single option or pair, as the solver sees it
LEVELLING = 10  # sweeps
MOST_CELLS = 20_000_000
WHOLE = 1e-6  # how far from 0 and 1 a value counts as whole
FEWEST_ASKS = 8
SPREAD = 1e-6  # a relaxed solution may break a memory row by so much of the limit


@dataclass(frozen=True, slots=True)
class Exact:
    """What the programme says: a choice if one was found, and a bound on all of them.

    work: columns passed over, see `planner/solver/work.py`.
    """

    choice: Ints | None
    bound: float
    stop: Stop
    work: float = 0.0


def _levelled(flat: Flat) -> Flat:
    """The problem in costs near those that matter: large ones that cancel cost digits."""
    if flat.entries > MOST_CELLS or not consistent(flat).all():
        return flat
    messages = Messages(flat)
    for _ in range(LEVELLING):
        messages.sweep()
    return messages.levelled()


def columns(flat: Flat, held: np.ndarray | None = None) -> int:
    """Number of variables that the programme would have at most, with the options held."""
    if held is None:
        return len(flat.cost) + flat.entries
    left = np.add.reduceat(held.astype(np.int64), flat.first[:-1])
    return int(left.sum() + (left[flat.ends[:, 0]] * left[flat.ends[:, 1]]).sum())


def solve_ilp(
    flat: Flat,
    excess: Sequence[Flat] = (),
    *,
    time_limit_s: float,
    cutoff: float = np.inf,
    nodes: float = np.inf,
    work: float = np.inf,
) -> Exact:
    """Solves exactly, or as far as the time limit allows.

    Args:
        flat: the problem.
        excess: for each window of overlap, hidden seconds less those of work as the cost of a
            problem with the same nodes, options and edges [s].
        time_limit_s: time limit of all parts [s].
        cutoff: cost below which choices are wanted [s]; `INFEASIBLE` if there are none.
        nodes: largest number of nodes of the branch-and-bound tree.
        work: limit of branch and bound [columns times number of its callbacks].
    """
    deadline = time.monotonic() + time_limit_s
    if not flat.size or not np.isfinite(flat.constant):
        return _trivial(flat, excess)
    programme = _Programme(flat, excess)
    bound = programme.relax(deadline, cutoff)
    if programme.answer is not None:
        return Exact(programme.answer, bound, Stop.OPTIMAL, programme.work)
    if bound >= cutoff:
        return Exact(None, bound, Stop.INFEASIBLE, programme.work)
    programme.make_integral(cutoff, nodes)
    asks = max(FEWEST_ASKS, work / max(programme.highs.columns, 1))
    while True:
        found = programme.branch(bound, cutoff, deadline, asks)
        if found is not None:
            return replace(found, work=programme.work)


def _trivial(flat: Flat, excess: Sequence[Flat]) -> Exact:
    if np.isfinite(flat.constant) and flat.limit.min(initial=0.0) >= 0.0:
        none = np.zeros(0, dtype=np.int64)
        return Exact(none, _cost_of(none, flat, excess), Stop.OPTIMAL)
    return Exact(None, np.inf, Stop.INFEASIBLE)


def _cost_of(choice: Ints, flat: Flat, excess: Sequence[Flat]) -> float:
    """Cost of a choice, what windows do not hide included [s]."""
    return flat.cost_of(choice) + sum(max(0.0, window.cost_of(choice)) for window in excess)


class _Programme:
    """The rows and columns written so far."""

    def __init__(self, flat: Flat, excess: Sequence[Flat]) -> None:
        self.flat, self.level, self.excess = flat, _levelled(flat), excess
        self.rows_at: set[int] = set()  # moments that have a memory row
        self.answer: Ints | None = None
        self.highs = self._write()

    @property
    def work(self) -> float:
        """Columns passed over so far."""
        return PROGRAMME * self.highs.columns * (1.0 + self.highs.asked)

    def _write(self) -> Highs:
        """Columns: options node by node, then pairs edge by edge, then windows."""
        flat, sizes = self.level, self.level.sizes
        u, v = flat.ends[:, 0], flat.ends[:, 1]
        m, labels = len(u), len(flat.cost)
        wide = sizes[u] * sizes[v]
        cells = np.repeat(np.arange(m), wide)
        place = ranges(np.zeros(m, dtype=np.int64), wide)
        cost = flat.pool[flat.table[cells] + place]
        held = np.isfinite(cost)
        cells, place, cost = cells[held], place[held], cost[held]
        # rows: one per node, then those of the first and of the second end of each edge
        rows_u = flat.size + np.concatenate(([0], np.cumsum(sizes[u])))
        rows_v = rows_u[-1] + np.concatenate(([0], np.cumsum(sizes[v])))
        row_count = int(rows_v[-1])
        i, j = np.divmod(place, sizes[v][cells])
        pair_rows = np.stack((rows_u[:-1][cells] + i, rows_v[:-1][cells] + j), axis=1)
        # entries of the options: the row of their node, and one per edge and option
        node_of = np.repeat(np.arange(flat.size), sizes)
        option = np.concatenate(
            (
                np.arange(labels),
                ranges(flat.first[:-1][u], sizes[u]),
                ranges(flat.first[:-1][v], sizes[v]),
            )
        )
        row = np.concatenate((node_of, np.arange(flat.size, row_count)))
        sign = np.concatenate((np.ones(labels), -np.ones(row_count - flat.size)))
        order = np.argsort(option, kind="stable")
        windows = len(self.excess)
        counts = np.concatenate(
            (np.bincount(option, minlength=labels), np.full(len(cost), 2), np.zeros(windows, int))
        )
        finite = np.isfinite(flat.cost)
        objective = np.concatenate((np.where(finite, flat.cost, 0.0), cost))
        over = [np.append(w.cost, w.pool[w.table[cells] + place]) for w in self.excess]
        most = [float(np.abs(row).max(initial=0.0)) for row in (objective, *over)]
        self.unit = max(*most, *(w.constant for w in self.excess), 0.0) / TOP_COST or 1.0
        highs = Highs(
            cost=np.append(objective / self.unit, np.ones(windows)),
            row_count=row_count,
            rows=np.concatenate((np.ones(flat.size), np.zeros(row_count - flat.size))),
            starts=np.concatenate(([0], np.cumsum(counts))),
            index=np.concatenate((row[order], pair_rows.ravel())),
            value=np.concatenate((sign[order], np.ones(2 * len(cost)))),
            integral=np.arange(labels + len(cost) + windows) < labels,
            upper=np.concatenate((finite.astype(float), np.full(len(cost) + windows, np.inf))),
        )
        for n, (window, seconds) in enumerate(zip(self.excess, over, strict=True)):
            used = np.flatnonzero(seconds)
            index = np.append(used, labels + len(cost) + n)
            value = np.append(seconds[used] / self.unit, -1.0)
            highs.add_row(index, value, -window.constant / self.unit)
        return highs

    # --- solving ---

    def relax(self, deadline: float, cutoff: float) -> float:
        """Solves the relaxation with all memory rows it breaks; returns its bound.

        `answer` is set if the relaxed solution is one.
        """
        flat, bound = self.flat, -np.inf
        while True:
            status = self.highs.run(deadline)
            if status == "infeasible":
                return np.inf
            if status == "stopped":
                return bound
            bound = max(bound, self._real(self.highs.objective()))
            values = self.highs.values()
            if values is None or bound >= cutoff:
                return bound
            if not self._add_rows(self._room(values)):
                whole = np.abs(values[: len(flat.cost)] - 0.5).min(initial=0.5) > 0.5 - WHOLE
                choice = self.read(values)
                if whole and flat.fits(choice) and np.isfinite(flat.cost_of(choice)):
                    self.answer = choice
                    bound = min(bound, _cost_of(choice, flat, self.excess))
                return bound

    def make_integral(self, cutoff: float, nodes: float) -> None:
        """From now on a 0/1 programme; arguments as in `solve_ilp`."""
        self.highs.make_integral()
        self.highs.set("mip_rel_gap", 0.0)
        self.highs.set("mip_abs_gap", 0.0)
        if nodes < np.inf:
            self.highs.set("mip_max_nodes", int(nodes))
        if cutoff < np.inf:
            self.highs.set("objective_bound", (cutoff - self.level.constant) / self.unit)

    def branch(self, bound: float, cutoff: float, deadline: float, asks: float) -> Exact | None:
        """Branch and bound; None if its choice does not fit, and is excluded from now on."""
        status = self.highs.run(deadline, asks)
        if status == "infeasible":
            return Exact(None, cutoff, Stop.INFEASIBLE)
        bound = max(bound, self._real(self.highs.bound()))
        open_ = Stop.TIME_LIMIT if time.monotonic() >= deadline else Stop.GAP
        values = self.highs.values()
        if values is None:
            return Exact(None, bound, open_)
        choice = self.read(values)
        cost = _cost_of(choice, self.flat, self.excess)
        proved = status == "optimal"
        if self.flat.fits(choice) and np.isfinite(cost):
            return Exact(choice, min(bound, cost), Stop.OPTIMAL if proved else open_)
        if not proved:
            return Exact(None, bound, open_)
        self.cut(choice)
        return None

    def _real(self, objective: float) -> float:
        return objective * self.unit + self.level.constant

    def read(self, values: Floats) -> Ints:
        """The likeliest option of each node."""
        flat = self.flat
        part = values[: len(flat.cost)]
        top = np.repeat(np.maximum.reduceat(part, flat.first[:-1]), flat.sizes)
        node = np.repeat(np.arange(flat.size), flat.sizes)
        best = np.flatnonzero(part >= top)
        keep = np.unique(node[best], return_index=True)[1]
        return best[keep] - flat.first[:-1]

    # --- memory ---

    def _room(self, values: Floats) -> Floats:
        flat = self.flat
        if not len(flat.limit):
            return flat.limit
        counts = flat.sizes[flat.owner]
        stretch = np.repeat(np.arange(len(counts)), counts)
        used = (
            flat.use[ranges(flat.use_at, counts)] * values[ranges(flat.first[flat.owner], counts)]
        )
        total = np.bincount(stretch, used, minlength=len(counts))
        change = np.bincount(flat.begin, total, minlength=len(flat.limit) + 1)
        change -= np.bincount(flat.end, total, minlength=len(flat.limit) + 1)
        return flat.limit - np.cumsum(change)[:-1]

    def _add_rows(self, room: Floats) -> bool:
        """A row for the worst moment of every run of moments that are over the limit."""
        flat, added = self.flat, False
        for moment in worst(room < -SPREAD * np.abs(flat.limit), room):
            if moment not in self.rows_at:
                self._add_row(moment)
                added = True
        return added

    def _add_row(self, moment: int) -> None:
        flat = self.flat
        self.rows_at.add(moment)
        here = np.flatnonzero((flat.begin <= moment) & (moment < flat.end))
        counts = flat.sizes[flat.owner[here]]
        index = ranges(flat.first[flat.owner[here]], counts)
        use = flat.use[ranges(flat.use_at[here], counts)]
        unit = float(use.max(initial=0.0)) or 1.0
        held = use != 0.0
        self.highs.add_row(index[held], use[held] / unit, float(flat.limit[moment]) / unit)

    def cut(self, choice: Ints) -> None:
        """Excludes a choice that is over the limit."""
        flat = self.flat
        room = flat.room(choice) if len(flat.limit) else flat.limit
        broken = worst(room < 0.0, room)
        for moment in broken:
            if moment not in self.rows_at:
                self._add_row(moment)
                continue
            here = np.unique(flat.owner[(flat.begin <= moment) & (moment < flat.end)])
            index = flat.first[here] + choice[here]
            self.highs.add_row(index, np.ones(len(index)), len(index) - 1.0)
        if not broken:  # a pair without a variable, by rounding of the solver
            index = flat.first[:-1] + choice
            self.highs.add_row(index, np.ones(len(index)), len(index) - 1.0)
