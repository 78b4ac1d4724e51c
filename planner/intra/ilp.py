# pyright: basic
"""The problem as a 0/1 programme, written with PuLP and solved by HiGHS.

    min   sum_v c_v . s_v + sum_uv R_uv . e_uv                  objective
    s.t.  sum_i s_v[i] = 1                         each v       one option
          sum_j e_uv[i, j] = s_u[i]                each uv, i   edges agree with their ends
          sum_i e_uv[i, j] = s_v[j]                each uv, j
          sum_v m_v . s_v <= limit                 each moment that a solution broke
          sum_v s_v[k_v] <= n - 1                  n options that are too much together

Edge variables are continuous: with s integral the marginal rows make them integral. The rows are
the strong form; the weak one, e >= s_u + s_v - 1, has the same integer points and a useless
relaxation. Memory rows are added only when a solution breaks them; the last kind only where a
solution breaks a memory row by less than the solver's tolerance.

Costs are scaled to the solver's tolerances, which are absolute: seconds would drown in them.

Source: Zheng et al., Alpa, OSDI 2022, section 4.2, with marginal rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pulp

from ..stop import Stop
from .problem import IntraProblem, IntraSolution

TOP_COST = 1000.0  # the largest cost of a single option or pair, as the solver sees it


Picks = list[list[Any]]  # for each option of each node its variable, or 1.0
Terms = list[tuple[pulp.LpVariable, float]]


@dataclass
class _Model:
    lp: pulp.LpProblem
    pick: Picks
    constant: float  # cost of what there is no choice about
    unit: float  # cost that the solver sees as 1
    moments: set[int] = field(default_factory=set)  # that have a memory row


def columns(problem: IntraProblem, labels: Sequence[np.ndarray]) -> int:
    """Number of variables that the programme would have."""
    sizes = [len(kept) for kept in labels]
    nodes = sum(n for n in sizes if n > 1)
    pairs = {(min(e.u, e.v), max(e.u, e.v)) for e in problem.edges if e.u != e.v}
    return nodes + sum(sizes[u] * sizes[v] for u, v in pairs if sizes[u] > 1 and sizes[v] > 1)


def solve_ilp(
    problem: IntraProblem,
    *,
    time_limit_s: float,
    labels: Sequence[np.ndarray] | None = None,
    relative_gap: float = 0.0,
    cutoff: float = float("inf"),
) -> IntraSolution:
    """Solves exactly, or as far as the time limit allows.

    Args:
        problem: what to solve.
        time_limit_s: for everything.
        labels: options to consider of each node; all if None.
        relative_gap: HiGHS stops at this gap.
        cutoff: cost of a known solution; only better ones are looked for.
    """
    kept = [np.arange(len(c)) for c in problem.node_cost] if labels is None else list(labels)
    deadline = time.monotonic() + time_limit_s
    model = _model(problem, kept)
    bound = -np.inf
    while np.isfinite(model.constant):
        left = deadline - time.monotonic()
        if left <= 0:
            return _nothing(bound, Stop.TIME_LIMIT)
        if not model.lp.variables():
            choice = tuple(int(k[0]) for k in kept)
            if problem.is_feasible(choice):
                return IntraSolution(choice, model.constant, model.constant, Stop.OPTIMAL)
            break
        solver = pulp.HiGHS(msg=False, timeLimit=left, gapRel=relative_gap, gapAbs=0.0, threads=1)
        status = model.lp.solve(solver)
        if status == pulp.LpStatusInfeasible:
            break
        if status != pulp.LpStatusOptimal:
            return _nothing(bound, Stop.TIME_LIMIT if time.monotonic() >= deadline else Stop.GAP)
        # holds for any subset of the memory rows
        highs: Any = model.lp.solverModel
        dual = highs.getInfo().mip_dual_bound * model.unit + model.constant
        choice = _read(model, kept)
        cost = problem.cost(choice)
        bound = max(bound, min(dual, cost))
        if bound >= cutoff:
            return _nothing(bound, Stop.OPTIMAL)
        proved = model.lp.sol_status == pulp.LpSolutionOptimal
        stop = Stop.OPTIMAL if proved else Stop.TIME_LIMIT
        if problem.is_feasible(choice):
            better = cost < cutoff
            return IntraSolution(choice, cost, bound, stop) if better else _nothing(bound, stop)
        if not proved:
            return _nothing(bound, Stop.TIME_LIMIT)
        _add_memory_rows(model, problem, kept, choice)
    return _nothing(float("inf"), Stop.INFEASIBLE)


def _nothing(bound: float, stop: Stop) -> IntraSolution:
    return IntraSolution((), float("inf"), bound, stop)


# --- writing the programme ---------------------------------------------------------------------


def _model(problem: IntraProblem, kept: list[np.ndarray]) -> _Model:
    lp = pulp.LpProblem("intra", pulp.LpMinimize)
    pick: Picks = []
    terms: Terms = []
    constant = 0.0
    costs, tables = _merged(problem, kept)
    for v, cost in enumerate(costs):
        if len(cost) == 1:
            pick.append([1.0])
            constant += float(cost[0])
            continue
        row = [
            pulp.LpVariable(f"s_{v}_{i}", 0, 1 if np.isfinite(c) else 0, cat="Integer")
            for i, c in enumerate(cost)
        ]
        pick.append(list(row))
        terms.extend((s, float(c)) for s, c in zip(row, cost, strict=True) if np.isfinite(c))
        lp += pulp.LpAffineExpression((s, 1) for s in row) == 1
    for (u, v), table in sorted(tables.items()):
        constant += _edge(lp, terms, u, v, table, pick)
    unit = max((abs(cost) for _, cost in terms), default=0.0) / TOP_COST or 1.0
    lp += pulp.LpAffineExpression((x, cost / unit) for x, cost in _summed(terms))
    return _Model(lp, pick, constant, unit)


def _merged(
    problem: IntraProblem, kept: list[np.ndarray]
) -> tuple[list[np.ndarray], dict[tuple[int, int], np.ndarray]]:
    """Costs of the kept options, loops included, and one table for each pair of nodes."""
    costs = [c[labels] for c, labels in zip(problem.node_cost, kept, strict=True)]
    tables: dict[tuple[int, int], np.ndarray] = {}
    for edge in problem.edges:
        u, v, table = edge.u, edge.v, edge.cost
        if u == v:
            costs[u] = costs[u] + np.diagonal(table)[kept[u]]
            continue
        if u > v:
            u, v, table = v, u, table.T
        part = table[np.ix_(kept[u], kept[v])]
        tables[(u, v)] = tables[(u, v)] + part if (u, v) in tables else part
    return costs, tables


def _summed(terms: Terms) -> Terms:
    """One term for each variable."""
    total: dict[pulp.LpVariable, float] = {}
    for x, cost in terms:
        total[x] = total.get(x, 0.0) + cost
    return list(total.items())


def _edge(
    lp: pulp.LpProblem, terms: Terms, u: int, v: int, table: np.ndarray, pick: Picks
) -> float:
    """Writes one pair of nodes; returns the cost about which there is no choice."""
    rows, columns = table.shape
    if rows == 1 or columns == 1:
        fixed = 0.0
        ends = pick[v] if rows == 1 else pick[u]
        for end, cost in zip(ends, table.ravel(), strict=True):
            if isinstance(end, float):
                fixed += float(cost)
            elif np.isfinite(cost):
                terms.append((end, float(cost)))
            else:
                end.upBound = 0
        return fixed
    cells = [
        [pulp.LpVariable(f"e_{u}_{v}_{i}_{j}", 0, 1) for j in range(columns)] for i in range(rows)
    ]
    for i in range(rows):
        row = [(cells[i][j], 1) for j in range(columns)]
        lp += pulp.LpAffineExpression([*row, (pick[u][i], -1)]) == 0
        for j in range(columns):
            if np.isfinite(table[i, j]):
                terms.append((cells[i][j], float(table[i, j])))
            else:
                cells[i][j].upBound = 0
    for j in range(columns):
        column = [(cells[i][j], 1) for i in range(rows)]
        lp += pulp.LpAffineExpression([*column, (pick[v][j], -1)]) == 0
    return 0.0


def _read(model: _Model, kept: list[np.ndarray]) -> tuple[int, ...]:
    choice: list[int] = []
    for row, labels in zip(model.pick, kept, strict=True):
        values = [x if isinstance(x, float) else (x.value() or 0.0) for x in row]
        choice.append(int(labels[int(np.argmax(values))]))
    return tuple(choice)


# --- memory ------------------------------------------------------------------------------------


def _add_memory_rows(
    model: _Model, problem: IntraProblem, kept: list[np.ndarray], choice: tuple[int, ...]
) -> None:
    """A row for the worst moment of every stretch in which a choice is over the limit."""
    memory = problem.memory(choice)
    over = memory > problem.limit * (1 + 1e-12)
    starts = np.flatnonzero(over & ~np.concatenate(([False], over[:-1])))
    for start in starts.tolist():
        end = start
        while end < len(over) and over[end]:
            end += 1
        moment = start + int(np.argmax(memory[start:end]))
        if moment in model.moments:
            _exclude(model, problem, kept, choice, moment)
        else:
            _add_memory_row(model, problem, kept, moment)


def _alive(problem: IntraProblem, moment: int) -> list[int]:
    return [v for v, (start, end) in enumerate(problem.intervals) if start <= moment < end]


def _add_memory_row(
    model: _Model, problem: IntraProblem, kept: list[np.ndarray], moment: int
) -> None:
    model.moments.add(moment)
    terms: Terms = []
    left = problem.limit
    for v in _alive(problem, moment):
        for x, k in zip(model.pick[v], kept[v], strict=True):
            use = float(problem.usage[v][k])
            if isinstance(x, float):
                left -= use
            elif use:
                terms.append((x, use))
    unit = max((use for _, use in terms), default=1.0)
    row = pulp.LpAffineExpression((x, use / unit) for x, use in terms)
    model.lp += row <= left / unit


def _exclude(
    model: _Model,
    problem: IntraProblem,
    kept: list[np.ndarray],
    choice: tuple[int, ...],
    moment: int,
) -> None:
    """Forbids the options that are together at one moment and too much."""
    terms: Terms = []
    for v in _alive(problem, moment):
        x = model.pick[v][int(np.flatnonzero(kept[v] == choice[v])[0])]
        if not isinstance(x, float):
            terms.append((x, 1.0))
    model.lp += pulp.LpAffineExpression(terms) <= len(terms) - 1
