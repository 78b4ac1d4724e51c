"""Every choice, a block at a time: the oracle of the solvers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from planner.common.stop import Stop
from planner.solver.problem import Floats, IntraProblem, IntraSolution

MOST = 2_500_000
_BLOCK = 1 << 16
Columns = list[NDArray[np.intp]]  # for each node, its option in each choice of a block


def brute_force(problem: IntraProblem) -> IntraSolution:
    """The best feasible choice; of equal ones the first in lexicographic order.

    Raises:
        ValueError: if there are too many choices to try.
    """
    sizes = tuple(len(c) for c in problem.node_cost)
    count = math.prod(sizes)
    if count > MOST:
        raise ValueError(f"brute force over {count} choices; at most {MOST} are tried")
    best: tuple[int, ...] = ()
    best_cost = math.inf
    for start in range(0, count, _BLOCK):
        numbers = np.arange(start, min(start + _BLOCK, count))
        columns: Columns = list(np.unravel_index(numbers, sizes)) if sizes else []
        cost = _costs(problem, columns, len(numbers))
        cost[_peaks(problem, columns, len(numbers)) > problem.limit * (1 + 1e-12)] = math.inf
        first = int(np.argmin(cost))
        if cost[first] < best_cost:
            best, best_cost = tuple(int(c[first]) for c in columns), float(cost[first])
    if best_cost == math.inf:
        return IntraSolution((), math.inf, math.inf, Stop.INFEASIBLE)
    return IntraSolution(best, problem.cost(best), problem.cost(best), Stop.OPTIMAL)


def _costs(problem: IntraProblem, columns: Columns, count: int) -> Floats:
    total = np.zeros(count)
    for cost, column in zip(problem.node_cost, columns, strict=True):
        total += cost[column]
    over: dict[int, Floats] = {}
    for edge in problem.edges:
        total += edge.cost[columns[edge.u], columns[edge.v]]
        if edge.hidden is not None:
            hidden = edge.hidden.seconds[columns[edge.u], columns[edge.v]]
            over[edge.hidden.window] = over.get(edge.hidden.window, 0.0) + hidden
    for work in problem.work:
        if work.window in over:
            over[work.window] = over[work.window] - work.seconds[columns[work.node]]
    return total + sum(np.maximum(each, 0.0) for each in over.values())


def _peaks(problem: IntraProblem, columns: Columns, count: int) -> Floats:
    """Largest usage of each choice; usage only rises where an interval starts."""
    peak = np.zeros(count)
    for moment in sorted({start for start, end in problem.intervals if start < end}):
        now = np.zeros(count)
        for use, column, (start, end) in zip(
            problem.usage, columns, problem.intervals, strict=True
        ):
            if start <= moment < end:
                now += use[column]
        np.maximum(peak, now, out=peak)
    return peak
