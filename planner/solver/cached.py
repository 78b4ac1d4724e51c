"""Solved problems in the plan store; entries are checked against the problem on reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import msgspec
import numpy as np

from ..common.stop import Stop
from ..common.store.keys import Memory, array_name, key_of
from .problem import IntraProblem, IntraSolution
from .solve import SolveOptions
from .tables import Table, whole
from .work import Work

# What a limit of time cut short is searched again.
FINAL = (Stop.OPTIMAL, Stop.GAP, Stop.INFEASIBLE)


class _Solution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    choice: tuple[int, ...]
    cost: float
    bound: float
    stop: str
    work: float


def solved(
    memory: Memory,
    problem: IntraProblem,
    options: SolveOptions,
    limit_s: float,
    solve: Callable[[], IntraSolution],
) -> IntraSolution:
    """The solution of a problem, from the store or solved now.

    Args:
        memory: the store.
        problem: arrays.
        options: of the solver; the time and the work that are left are not part of the name.
        limit_s: of the whole search.
        solve: finds the solution.
    """
    if memory.store is None:
        return solve()
    key = _name(problem, replace(options, time_limit_s=limit_s))
    row = memory.get("solution", key, _Solution)
    work = options.work
    left = row is None or work.done + row.work <= work.limit
    if row is not None and left and row.stop in Stop.__members__ and _solves(row, problem):
        work.done += row.work
        return IntraSolution(row.choice, row.cost, row.bound, Stop[row.stop])
    before = work.done
    found = solve()
    if found.stop in FINAL and not work.exhausted:
        done = work.done - before
        row = _Solution(found.choice, found.cost, found.bound, found.stop.name, done)
        memory.put("solution", key, row)
    return found


def _name(problem: IntraProblem, options: SolveOptions) -> str:
    """A name for a problem: every distinct array once, and where each is used."""
    numbers: dict[int, int] = {}
    names: list[object] = []

    def number(table: Table) -> int:
        if id(table) not in numbers:
            numbers[id(table)] = len(names)
            names.append(array_name(whole(table)))
        return numbers[id(table)]

    nodes = [number(array) for array in problem.node_cost]
    edges = [(e.u, e.v, number(e.table)) for e in problem.edges]
    hidden = [
        (n, e.hidden.window, number(e.hidden.table))
        for n, e in enumerate(problem.edges)
        if e.hidden is not None
    ]
    work = [(x.node, x.window, number(x.seconds)) for x in problem.work]
    usage = [number(array) for array in problem.usage]
    plain = asdict(replace(options, work=Work()))
    kept = {**plain, "cutoff": repr(options.cutoff), "time_limit_s": repr(options.time_limit_s)}
    parts = (
        nodes,
        edges,
        hidden,
        work,
        usage,
        problem.intervals,
        repr(problem.limit),
        sorted(kept.items()),
    )
    return key_of("solution", parts, names)


def _solves(row: _Solution, problem: IntraProblem) -> bool:
    """Whether a kept solution is one of this problem, with the cost it claims."""
    if not row.choice:
        return True
    sizes = [len(cost) for cost in problem.node_cost]
    if len(row.choice) != len(sizes) or row.bound > row.cost:
        return False
    if not all(0 <= k < n for k, n in zip(row.choice, sizes, strict=True)):
        return False
    same = np.isclose(problem.cost(row.choice), row.cost, rtol=1e-12, atol=0.0)
    return bool(same) and problem.is_feasible(row.choice)
