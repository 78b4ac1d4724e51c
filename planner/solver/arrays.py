"""The problem in flat arrays: what reductions, kernels and the 0/1 programme work on.

Compared with `IntraProblem`: nodes may use memory in several stretches of time (merged nodes do),
what is used in any case is taken off the limit, so that every stretch has an option that uses
nothing there, only the moments that can be over the limit are left, and a constant holds the cost
about which there is no choice: infinite where nothing can fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .problem import Floats, IntraProblem
from .tables import Deferred, Table, Turned, whole

Ints = NDArray[np.int64]


class Pool:
    """An array that grows at its end; what it holds stays at its place.

    Problems that are made of each other share one: they differ in few of their tables, which are
    most of their memory.

    Args:
        tables: what it holds at first, one after the other.
    """

    SPARE = 1.25  # of the size; memory that is not used is not taken

    def __init__(self, *tables: Table) -> None:
        self.size = sum(table.size for table in tables)
        if len(tables) == 1:
            self._array = whole(tables[0]).ravel()
            return
        self._array, at = np.zeros(int(self.SPARE * self.size)), 0
        for table in tables:  # one after the other, so that two copies are of one table only
            self._array[at : at + table.size] = whole(table).ravel()
            at += table.size

    @property
    def filled(self) -> Floats:
        return self._array[: self.size]

    def grow(self, count: int) -> Floats:
        """The next entries, zeros, to be filled."""
        start, self.size = self.size, self.size + count
        if self.size > len(self._array):
            before = self._array[:start]
            self._array = np.zeros(int(self.SPARE * self.size))
            self._array[:start] = before
        return self._array[start : self.size]


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Arrays over n nodes, L options, m edges, k stretches of use, T moments.

    first: [n + 1], options of node v are first[v] to first[v + 1].
    cost: [L].
    ends: [m, 2], first end < second end, each pair once.
    table: [m], where the costs of an edge begin in `pool`, row by row; edges may share them.
    tables: what `pool` holds; some of it may belong to other problems.
    owner, begin, end: [k], node and moments of a stretch, [begin, end); sorted by node.
    use_at: [k], where the use of each option of the owner begins in `use`.
    limit: [T], what is left at each moment.
    moment: [T], its number in the original problem.
    """

    first: Ints
    cost: Floats
    ends: Ints
    table: Ints
    tables: Pool
    owner: Ints
    begin: Ints
    end: Ints
    use_at: Ints
    use: Floats
    limit: Floats
    moment: Ints
    constant: float

    @property
    def size(self) -> int:
        return len(self.first) - 1

    @property
    def pool(self) -> Floats:
        return self.tables.filled

    @property
    def sizes(self) -> Ints:
        return np.diff(self.first)

    @property
    def entries(self) -> int:
        """Pairs of options over all edges: edge variables of the 0/1 programme."""
        sizes = self.sizes
        return int((sizes[self.ends[:, 0]] * sizes[self.ends[:, 1]]).sum())

    def cost_of(self, choice: Ints) -> float:
        """Cost of a choice."""
        u, v = self.ends[:, 0], self.ends[:, 1]
        cells = self.table + choice[u] * self.sizes[v] + choice[v]
        nodes = self.cost[self.first[:-1] + choice]
        return float(nodes.sum() + self.pool[cells].sum()) + self.constant

    def room(self, choice: Ints) -> Floats:
        """What a choice leaves free at each moment; negative where it is too much."""
        used = self.use[self.use_at + choice[self.owner]]
        change = np.zeros(len(self.limit) + 1)
        np.add.at(change, self.begin, used)
        np.add.at(change, self.end, -used)
        return self.limit - np.cumsum(change)[:-1]

    def fits(self, choice: Ints) -> bool:
        return not len(self.limit) or bool(self.room(choice).min() >= 0.0)


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Concatenated `arange(s, s + c)`."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - counts), counts)


def pooled(tables: Sequence[Table]) -> tuple[Ints, Pool]:
    """Where each table begins among all of them; one object is held once."""
    place: dict[int, int] = {}
    at = np.empty(len(tables), dtype=np.int64)
    parts: list[Table] = []
    filled = 0
    for n, table in enumerate(tables):
        known = place.get(id(table))
        if known is None:
            known = place[id(table)] = filled
            parts.append(table)
            filled += table.size
        at[n] = known
    return at, Pool(*parts)


def flatten_problem(problem: IntraProblem) -> Flat:
    """The problem as flat arrays, with parallel edges and all moments; reductions remove these.

    Loops are added to their node; the ends of edges are put in order.
    """
    costs = list(problem.node_cost)
    ends: list[int] = []  # of one edge after the other
    tables: list[Table] = []
    turned: dict[int, Table] = {}
    for edge in problem.edges:
        u, v, cost = edge.u, edge.v, edge.table
        if u < v:
            ends += (u, v)
            tables.append(cost)
        elif u > v:
            ends += (v, u)
            if id(cost) not in turned:
                deferred = isinstance(cost, Deferred)
                turned[id(cost)] = Turned(cost) if deferred else np.ascontiguousarray(cost.T)
            tables.append(turned[id(cost)])
        else:
            costs[u] = costs[u] + np.diagonal(edge.cost)
    first = np.concatenate(([0], np.cumsum([len(c) for c in costs]))).astype(np.int64)
    table, pool = pooled(tables)
    owner, begin, end, moment = _stretches(problem)
    use_at, use = pooled([problem.usage[int(v)] for v in owner])
    return Flat(
        first, np.concatenate(costs) if costs else np.zeros(0),
        np.array(ends, dtype=np.int64).reshape(-1, 2), table, pool,
        owner, begin, end, use_at, use.filled,
        np.full(len(moment), problem.limit * (1 + 1e-12)), moment,
        0.0 if problem.limit >= 0 else np.inf,  # no memory is too much
    )  # fmt: skip


def _stretches(problem: IntraProblem) -> tuple[Ints, Ints, Ints, Ints]:
    """Owner, begin and end of each use in terms of the moments that matter, and these moments.

    Use is largest just before something ends: of the moments at which something begins, only
    those matter that are followed by an end before anything else begins.
    """
    spans = np.array(problem.intervals, dtype=np.int64).reshape(-1, 2)
    alive = (spans[:, 1] > spans[:, 0]) & np.isfinite(problem.limit)
    owner: Ints = np.flatnonzero(alive).astype(np.int64)
    left: Ints = spans[owner, 0]
    right: Ints = spans[owner, 1]
    starts, stops = np.unique(left), np.unique(right)
    # the next start after each start, and whether something stops up to there
    following = np.concatenate((starts[1:], [np.iinfo(np.int64).max]))[: len(starts)]
    stopped = np.searchsorted(stops, following, "right") > np.searchsorted(stops, starts, "right")
    moment = starts[stopped]
    begin = np.searchsorted(moment, left).astype(np.int64)
    end = np.searchsorted(moment, right).astype(np.int64)
    held = end > begin
    return owner[held], begin[held], end[held], moment
