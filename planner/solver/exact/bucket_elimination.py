"""Exact elimination: nodes are removed one by one, each replaced by a table of its best options.

Removing x replaces the factors f_1..f_m that mention it by one factor over its neighbours,

    g(y) = min_x  sum_i f_i(x, y_i)                                    join()

which keeps the optimum (OptCNN's node and edge elimination are the cases of one and two
neighbours; in general this is non-serial dynamic programming over a tree decomposition). The
order is greedy: the smallest new table first. Choices are read back in reverse order.

Tables are interned, so that the repeated layers of a program cost the arithmetic of one.

Source: Bertele and Brioschi, Nonserial Dynamic Programming, 1972; Jia et al., OptCNN, ICML 2018.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..arrays import Flat, Ints
from ..problem import Edge, Floats

# Problems up to this size are tried as a whole, with tables up to that one.
MOST_NODES, MOST_ENTRIES = 3_000, 300_000
MOST_NEIGHBOURS = 30
AT_ONCE = 2**18  # cells that are added up in one go
# Cells from which on another order of variables saves more than it takes: of 4,004 tables of plans
# of small GPTs and Llamas.
REORDERED = 4096
Scope = tuple[int, ...]
_Content = dict[tuple[tuple[int, ...], bytes], int]


@dataclass
class Tables:
    """Interned arrays and cached results, shared by solves over the same tables."""

    by_object: dict[int, int] = field(default_factory=dict[int, int])
    by_content: _Content = field(default_factory=_Content)
    arrays: list[Floats] = field(default_factory=list[Floats])
    held: list[Floats] = field(default_factory=list[Floats])
    results: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])
    orders: dict[bytes, list[int]] = field(default_factory=dict[bytes, list[int]])

    def intern_kept(self, array: Floats) -> int:
        """`intern` for an array that lives on: it is known again by its identity."""
        known = self.by_object.get(id(array))
        if known is None:
            known = self.intern(array)
            self.by_object[id(array)] = known
            self.held.append(array)  # an identity may be reused once its object is gone
        return known

    def intern(self, array: Floats) -> int:
        """A number for the array; equal content, equal number."""
        key = (array.shape, array.tobytes())
        number = self.by_content.get(key)
        if number is None:
            number = len(self.arrays)
            self.by_content[key] = number
            self.arrays.append(array)
        return number

    def join(self, factors: tuple[tuple[int, tuple[int, ...]], ...], sizes: tuple[int, ...]) -> int:
        """Min over variable 0 of the sum of factors; the result ranges over 1..n-1.

        Args:
            factors: (table, positions of its dimensions among the variables).
            sizes: domain size of each variable; variable 0 is removed.
        """
        key = ("join", factors, sizes)
        if key not in self.results:
            self.results[key] = self._new(self._join(factors, sizes))
        return self.results[key]

    def add(self, first: int, second: int) -> int:
        """Sum of two tables of one shape."""
        key = ("add", *sorted((first, second)))
        if key not in self.results:
            self.results[key] = self._new(self.arrays[first] + self.arrays[second])
        return self.results[key]

    def transpose(self, table: int, order: tuple[int, ...]) -> int:
        if order == tuple(range(len(order))):
            return table
        key = ("transpose", table, order)
        if key not in self.results:
            moved = np.ascontiguousarray(self.arrays[table].transpose(order))
            self.results[key] = self._new(moved)
        return self.results[key]

    def _new(self, array: Floats) -> int:
        if array.size <= 65536:
            return self.intern(array)
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _join(
        self, factors: tuple[tuple[int, tuple[int, ...]], ...], sizes: tuple[int, ...]
    ) -> Floats:
        order = _inner_last([places for _, places in factors], sizes)
        rank = {variable: k for k, variable in enumerate(order)}
        rest = [sizes[variable] for variable in order[1:]]
        stride = max(1, AT_ONCE // max(1, math.prod(rest)))
        parts = [
            _spread(self.arrays[table], tuple([rank[p] for p in places]), len(sizes))
            for table, places in factors
        ]
        if stride >= sizes[0]:
            best = np.minimum.reduce(_sum(parts), axis=0)
        else:
            best = np.full(rest, np.inf)
            for k in range(0, sizes[0], stride):
                some = [array[k : k + stride] if len(array) > 1 else array for array in parts]
                np.minimum(best, np.minimum.reduce(_sum(some), axis=0), out=best)
        return np.ascontiguousarray(best.transpose([rank[p] - 1 for p in range(1, len(sizes))]))


def _inner_last(scopes: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> Sequence[int]:
    """Variables in the order in which NumPy adds factors up fastest, the removed one first.

    Variables of the same factors stand together, those of most cells last: NumPy runs through them
    in one inner loop. Options are few, so that loops along single variables are short.

    Args:
        scopes: variables of each factor.
        sizes: domain size of each variable.
    """
    if math.prod(sizes) < REORDERED:
        return range(len(sizes))
    factors, cells = [0] * len(sizes), dict[int, int]()  # sets of factors as bits
    for k, scope in enumerate(scopes):
        for p in scope:
            factors[p] |= 1 << k
    for p in range(1, len(sizes)):
        cells[factors[p]] = cells.get(factors[p], 1) * sizes[p]
    return 0, *sorted(range(1, len(sizes)), key=lambda p: (cells[factors[p]], factors[p], p))


def _sum(arrays: Sequence[Floats]) -> Floats:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


def _spread(array: Floats, positions: tuple[int, ...], rank: int) -> Floats:
    """A factor over all variables, with unit dimensions for absent ones; its cells in that order.

    Args:
        array: the factor.
        positions: of its dimensions among the variables.
        rank: number of variables.
    """
    axes = sorted(range(len(positions)), key=positions.__getitem__)
    return np.ascontiguousarray(array.transpose(axes))[
        tuple([slice(None) if p in positions else None for p in range(rank)])
    ]


def order(
    sizes: Sequence[int], joined: Mapping[int, Collection[int]], max_entries: int
) -> list[int]:
    """Nodes in the order in which they are removed, smallest table first, while the limits allow.

    Args:
        sizes: options of each node.
        joined: the neighbours of each node that is there.
        max_entries: of a table.
    """
    left = {v: set(neighbours) for v, neighbours in joined.items()}

    def entries(v: int) -> int:
        return math.prod([sizes[w] for w in left[v]])

    found, now = list[int](), {v: entries(v) for v in left}
    heap = [(size, v) for v, size in now.items()]
    heapq.heapify(heap)
    while heap:
        size, v = heapq.heappop(heap)
        if v not in left or size != now[v]:  # what it is now was pushed when that changed
            continue
        if size > max_entries:
            break
        if len(left[v]) > MOST_NEIGHBOURS:
            continue
        found.append(v)
        around = left.pop(v)
        for w in around:
            left[w] |= around
            left[w] -= {v, w}
            now[w] = entries(w)
            heapq.heappush(heap, (now[w], w))
    return found


class Elimination:
    """Elimination of the nodes of a problem: `run`, then `read_back`."""

    def __init__(
        self,
        node_cost: Sequence[Floats],
        edges: Sequence[Edge],
        tables: Tables | None = None,
    ) -> None:
        """Takes costs of nodes and edges.

        Args:
            node_cost: per node, one entry per option.
            edges: pair costs.
            tables: interned tables to share.
        """
        self.tables = tables or Tables()
        self.sizes = [len(c) for c in node_cost]
        self.alive = set(range(len(node_cost)))
        self.factors: list[dict[Scope, int]] = [{} for _ in node_cost]
        self.neighbours: list[set[int]] = [set() for _ in node_cost]
        self.trail: list[tuple[int, tuple[tuple[Scope, int], ...]]] = []
        for v, cost in enumerate(node_cost):
            self._put((v,), self.tables.intern_kept(cost))
        for edge in edges:
            self._edge(edge)

    def _edge(self, edge: Edge) -> None:
        if edge.u == edge.v:
            diagonal = np.ascontiguousarray(np.diagonal(edge.cost))
            self._put((edge.u,), self.tables.intern(diagonal))
            return
        table = self.tables.intern_kept(edge.cost)
        if edge.u > edge.v:
            table = self.tables.transpose(table, (1, 0))
        self._put((min(edge.u, edge.v), max(edge.u, edge.v)), table)

    def _put(self, scope: Scope, table: int) -> None:
        held = self.factors[scope[0]].get(scope)
        number = table if held is None else self.tables.add(held, table)
        for v in scope:
            self.factors[v][scope] = number
            self.neighbours[v].update(scope)
            self.neighbours[v].discard(v)

    def run(
        self,
        max_entries: int = MOST_ENTRIES,
        deadline: float = float("inf"),
        nodes: Sequence[int] | None = None,
    ) -> None:
        """Removes nodes while the limits allow.

        Args:
            max_entries: of a table.
            deadline: by the monotonic clock.
            nodes: which ones, in this order; the smallest table first if None.
        """
        if nodes is None:
            joined = {v: self.neighbours[v] for v in self.alive}
            nodes = order(self.sizes, joined, max_entries)
        for v in nodes:
            if time.monotonic() > deadline:
                break
            self._remove(v)

    def _remove(self, v: int) -> None:
        scope = tuple(sorted(self.neighbours[v]))
        position = {w: i + 1 for i, w in enumerate(scope)}
        position[v] = 0
        mine = tuple(sorted(self.factors[v].items()))
        self.trail.append((v, mine))
        for other, _ in mine:
            for w in other:
                if w != v:
                    del self.factors[w][other]
        for w in scope:
            self.neighbours[w].discard(v)
        self.alive.discard(v)
        if scope:
            joined = self.tables.join(
                tuple(sorted([(table, tuple([position[w] for w in s])) for s, table in mine])),
                (self.sizes[v], *[self.sizes[w] for w in scope]),
            )
            self._put(scope, joined)

    def read_back(self) -> tuple[int, ...]:
        """Best options of the nodes, once all are removed."""
        choice = [0] * len(self.sizes)
        for v, factors in reversed(self.trail):
            total: NDArray[np.float64] = np.zeros(self.sizes[v])
            for scope, table in factors:
                index = tuple([slice(None) if w == v else choice[w] for w in scope])
                total += self.tables.arrays[table][index]
            choice[v] = int(np.argmin(total))
        return tuple(choice)


def eliminated(flat: Flat, tables: Tables, deadline: float) -> Ints | None:
    """The best choice of a problem without limits; None if it is large or too wide."""
    if not flat.size:
        return np.zeros(0, dtype=np.int64)
    if len(flat.limit) or flat.size > MOST_NODES:
        return None
    sizes, form = flat.sizes, flat.first.tobytes() + flat.ends.tobytes()
    if form not in tables.orders:
        joined: dict[int, set[int]] = {v: set() for v in range(flat.size)}
        for u, v in flat.ends.tolist():
            joined[u].add(v)
            joined[v].add(u)
        tables.orders[form] = order(sizes.tolist(), joined, MOST_ENTRIES)
    nodes = tables.orders[form]
    if len(nodes) < flat.size:
        return None
    costs = [flat.cost[a:b] for a, b in zip(flat.first[:-1], flat.first[1:], strict=True)]
    shaped: dict[int, Floats] = {}
    edges: list[Edge] = []
    for (u, v), at in zip(flat.ends.tolist(), flat.table.tolist(), strict=True):
        if at not in shaped:
            cells = flat.pool[at : at + int(sizes[u] * sizes[v])]
            shaped[at] = cells.reshape(int(sizes[u]), int(sizes[v]))
        edges.append(Edge(u, v, shaped[at]))
    state = Elimination(costs, edges, tables)
    state.run(deadline=deadline, nodes=nodes)
    return None if state.alive else np.array(state.read_back(), dtype=np.int64)
