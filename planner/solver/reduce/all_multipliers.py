"""A problem with windows as flat arrays, reduced once for all multipliers of the windows.

At multipliers m the problem is A + sum_w m_w (H_w - C_w), see `windows.py`. Leaving out what is
forbidden and merging followers depend on neither A nor m, and are linear: A and each window are
read through one map, so that the problem at other multipliers is a sum of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..arrays import Flat, Ints, Pool, flatten_problem, ranges
from ..problem import Edge, Floats, IntraProblem
from .arc_consistency import consistent
from .reduce import Reduced
from .remap import NONE, Remap, remap


class AllMultipliers:
    """The problem at any multipliers: same nodes, options, edges and moments."""

    def __init__(self, problem: IntraProblem, windows: Sequence[int]) -> None:
        """Reduces the problem.

        Args:
            problem: with windows.
            windows: their numbers, in the order of multipliers.
        """
        whole = flatten_problem(problem)
        state = Reduced(whole)
        state.tidy()
        state.keep(consistent(state.flat))
        while not state.broken and state.merge_followers():
            state.keep(consistent(state.flat))
        self.broken = state.broken
        self.first = whole.first
        if self.broken:
            return
        maps = [step for step in state.steps if isinstance(step, Remap)]
        self.map = maps[0]
        for step in maps[1:]:
            self.map = _after(self.map, step)
        self.base = state.flat
        parts = [remap(flatten_problem(_part(problem, w)), self.map) for w in windows]
        self.costs = [part.cost for part in parts]
        self.constants = [part.constant for part in parts]
        sizes, ends = self.base.sizes, self.base.ends
        rows = np.stack([self.base.table, *(part.table for part in parts)], axis=1)
        _, firsts, kinds = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        wide = sizes[ends[firsts, 0]] * sizes[ends[firsts, 1]]
        begin = np.cumsum(wide) - wide
        self.table: Ints = begin[kinds.ravel()]
        self.pool: Floats = self.base.pool[ranges(self.base.table[firsts], wide)]
        # of each window: where tables that it adds to begin, and what it adds
        self.added: list[list[tuple[int, Floats]]] = [
            [
                (at, cells)
                for at, table, count in zip(
                    begin.tolist(), part.table[firsts].tolist(), wide.tolist(), strict=True
                )
                if (cells := part.pool[table : table + count]).any()
            ]
            for part in parts
        ]

    def at(self, multipliers: Sequence[float]) -> Flat:
        """The problem without windows at some multipliers."""
        cost, pool, constant = self.base.cost.copy(), self.pool.copy(), self.base.constant
        for n, m in enumerate(multipliers):
            if m > 0.0:
                cost += m * self.costs[n]
                constant += m * self.constants[n]
                for at, cells in self.added[n]:
                    pool[at : at + len(cells)] += m * cells
        return replace(self.base, cost=cost, table=self.table, tables=Pool(pool), constant=constant)

    def options(self, held: np.ndarray) -> np.ndarray:
        """Mask of the options of the problem as given that follow those held here."""
        counts, sizes = self.map.counts, self.map.sizes
        place = np.append(np.cumsum(sizes) - sizes, len(held))
        taken = np.append(held, True)[ranges(place[self.map.follows], counts)]
        cells = np.repeat(self.first[:-1], counts) + self.map.option[ranges(self.map.at, counts)]
        found = np.zeros(int(self.first[-1]), dtype=np.bool_)
        found[cells[taken]] = True
        return found


def _after(one: Remap, two: Remap) -> Remap:
    """The map that reads through `one`, then through `two`."""
    follows = np.append(two.follows, NONE)[one.follows]
    counts = np.append(two.counts, 1)[one.follows]
    inner = np.append(two.option, 0)
    begin = np.append(two.at, len(two.option))[one.follows]
    option = one.option[np.repeat(one.at, counts) + inner[ranges(begin, counts)]]
    return Remap(follows, np.cumsum(counts) - counts, option, two.sizes)


def _part(problem: IntraProblem, window: int) -> IntraProblem:
    """The seconds of communication less those of work in a window, as costs."""
    costs = [np.zeros(len(cost)) for cost in problem.node_cost]
    for x in problem.work:
        if x.window == window:
            costs[x.node] = costs[x.node] - x.seconds
    none: dict[tuple[int, ...], Floats] = {}

    def hidden(e: Edge) -> Floats:
        if e.hidden is not None and e.hidden.window == window:
            return e.hidden.seconds
        return none.setdefault(e.cost.shape, np.zeros(e.cost.shape))

    return IntraProblem(
        tuple(costs), tuple(Edge(e.u, e.v, hidden(e)) for e in problem.edges),
        tuple(costs), ((0, 0),) * problem.size, np.inf,
    )  # fmt: skip
