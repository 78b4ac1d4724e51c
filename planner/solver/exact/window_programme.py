"""The best choice of some options of a problem with windows of overlap, as a 0/1 programme.

At any multipliers the best choices have much communication or much work in a window, seldom a
balance of both. Some nodes with the options of one choice and some with those of another may be
better than each: few options for each node, and few nodes with more than one, are a small 0/1
programme, in which a window w is one column and one row (`ilp.py`):

    min  A(x) + sum_w t_w    subject to    H_w(x) - C_w(x) <= t_w,  t_w >= 0

At multipliers whose bound is close, few options and pairs can be part of a better choice; without
the others most nodes follow a neighbour. Small problems are solved with all of their options: that
closes the gap which multipliers leave.

Without memory limits such problems are narrow as a rule, and elimination finds the best choice in a
fraction of the time of the programme (`window_labels.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...common.stop import Stop
from ..arrays import Flat, Ints, Pool, flatten_problem, ranges
from ..bound.memory_multipliers import Multipliers
from ..bound.reduced_cost_fixing import cheap_enough
from ..mixing import Mixing
from ..options import SolveOptions
from ..problem import Edge, Floats, IntraProblem
from ..reduce.for_all_costs import ForAllCosts, reduced_for_all_costs
from ..reduce.options_left import OptionsLeft, options_left
from ..reduce.remap import remap
from ..search.restarts import some_option_each
from ..search.subproblems import SWEPT
from .ilp import Exact, columns, solve_ilp
from .window_labels import best_of_labels

# Shares of the distance between bound and cost in which a better choice is searched first: the
# nearer to the bound, the fewer options. A two-layer Llama: 1.2 s in place of 1.7 with 1.0 alone.
SHARES = (0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Combined:
    """The best choice of some options, empty if none is better, and their lower bound [s]."""

    choice: tuple[int, ...] = ()
    bound: float = -np.inf


def combined(
    problem: IntraProblem,
    held: np.ndarray,
    cost: float,
    multipliers: Mapping[int, float],
    options: SolveOptions,
) -> Combined:
    """The best choice of some options, unless these are too many.

    Args:
        problem: with windows.
        held: [L], the options, at least one of each node.
        cost: of the best choice known [s].
        multipliers: of windows, at which the bound is high.
        options: budget and time limit.
    """
    left = options_left(problem, held)
    mixed = reduced_for_all_costs(flatten_problem(Mixing().at(left.problem, multipliers)))
    if mixed is None or columns(mixed.flat) > options.budget.combined_columns:
        return Combined()
    some = _Options(
        problem, left, mixed, _bounded(mixed.flat, cost, options),
        remap(flatten_problem(replace(left.problem, work=())), mixed.map),
        [remap(each, mixed.map) for each in excess_of(left.problem)],
    )  # fmt: skip
    given = [multipliers.get(window, 0.0) for window in windows_of(left.problem)]
    return _by_labels(some, cost, given, options) or _by_programmes(some, cost, options)


@dataclass(frozen=True, slots=True, eq=False)
class _Options:
    """Some options of a problem, without those that follow others.

    left, mixed: the options, and the same without followers, at the multipliers.
    known: bound at the multipliers.
    alone: costs without windows.
    excess: of each window.
    """

    problem: IntraProblem
    left: OptionsLeft
    mixed: ForAllCosts
    known: Multipliers
    alone: Flat
    excess: list[Flat]

    def near(self, wanted: float) -> tuple[ForAllCosts, Flat, list[Flat]] | None:
        """What choices below some cost may have, its costs and its excess; None if there is none.

        Args:
            wanted: the cost [s].
        """
        known = self.known
        cheap, kept = cheap_enough(known.messages, known.best, wanted - known.best.bound)
        near = reduced_for_all_costs(cheap, kept) if some_option_each(cheap, kept) else None
        if near is None:
            return None
        flat = remap(_forbidding(self.alone, cheap), near.map)
        return near, flat, [remap(each, near.map) for each in self.excess]

    def lift(self, near: ForAllCosts, choice: Ints) -> tuple[int, ...]:
        """A choice of the problem."""
        return self.left.lift(self.mixed.map.lift(near.map.lift(choice)).tolist())


def _by_labels(
    some: _Options, cost: float, multipliers: Sequence[float], options: SolveOptions
) -> Combined | None:
    """By elimination; None where that is too wide."""
    every = some.near(cost)
    if every is None:
        return Combined((), cost)
    near, flat, excess = every
    found = best_of_labels(flat, excess, cost, multipliers)
    if found is None:
        return None
    options.work.done += found.work
    choice = () if found.choice is None else some.lift(near, found.choice)
    better = bool(choice) and some.problem.cost(choice) < cost
    return Combined(choice if better else (), min(found.bound, cost))


def _by_programmes(some: _Options, cost: float, options: SolveOptions) -> Combined:
    """By 0/1 programmes, of few options first."""
    least = bound = some.known.best.bound
    best: tuple[int, ...] = ()
    for share in SHARES:
        wanted = least + share * (cost - least)
        there = some.near(wanted)
        if there is None:
            bound = wanted
            continue
        near, flat, excess = there
        found = _solved(flat, excess, wanted, options)
        if found.stop in (Stop.OPTIMAL, Stop.INFEASIBLE):
            bound = max(bound, min(found.bound, wanted))
        if found.choice is not None:
            choice = some.lift(near, found.choice)
            if (better := some.problem.cost(choice)) < cost:
                best, cost = choice, better
                if not options.budget.exact:  # a good choice is enough
                    break
        if found.stop is Stop.GAP:  # more options are not searched to the end either
            break
    return Combined(best, bound)


def _solved(flat: Flat, excess: Sequence[Flat], wanted: float, options: SolveOptions) -> Exact:
    """The 0/1 programme, as far as the budget allows."""
    budget = options.budget
    found = solve_ilp(
        flat, excess, time_limit_s=options.time_limit_s, cutoff=wanted,
        nodes=budget.exact_nodes, work=budget.exact_work,
    )  # fmt: skip
    options.work.done += found.work
    return found


def _bounded(flat: Flat, cost: float, options: SolveOptions) -> Multipliers:
    """Messages and multipliers of memory that bound a problem without windows."""
    known = Multipliers(flat, None, cost, budget=options.budget)
    while known.stale < options.budget.stale_steps and known.best.bound < cost:
        known.step()
        options.work.done += SWEPT * columns(flat)
    known.rest()
    return known


def _forbidding(flat: Flat, cheap: Flat) -> Flat:
    """A problem without the pairs that another one of the same nodes and edges forbids."""
    sizes = flat.sizes
    wide = sizes[flat.ends[:, 0]] * sizes[flat.ends[:, 1]]
    cells = ranges(flat.table, wide)
    pool = np.where(np.isfinite(cheap.pool[ranges(cheap.table, wide)]), flat.pool[cells], np.inf)
    return replace(flat, table=np.cumsum(wide) - wide, tables=Pool(pool))


def windows_of(problem: IntraProblem) -> list[int]:
    """The windows in which something may be hidden."""
    return sorted({e.hidden.window for e in problem.edges if e.hidden is not None})


def excess_of(problem: IntraProblem) -> list[Flat]:
    """H_w - C_w of each window as the cost of a problem with the same nodes and edges."""
    none: dict[tuple[int, ...], Floats] = {}

    def zeros(shape: tuple[int, ...]) -> Floats:
        return none.setdefault(shape, np.zeros(shape))

    found: list[Flat] = []
    for window in windows_of(problem):
        costs = [zeros(c.shape) for c in problem.node_cost]
        for x in problem.work:
            if x.window == window:
                costs[x.node] = costs[x.node] - x.seconds
        edges = tuple(
            Edge(e.u, e.v, h.table if (h := e.hidden) and h.window == window
                 else zeros(e.table.shape))
            for e in problem.edges
        )  # fmt: skip
        alone = replace(problem, node_cost=tuple(costs), edges=edges, work=(), limit=np.inf)
        found.append(flatten_problem(alone))
    return found
