"""Series elimination: nodes without use of memory and with at most two neighbours.

Such a node v between a and b becomes an edge of its own,

    e_ab(i, j) = min_k  c_v(k) + e_av(i, k) + e_vb(k, j)

with one neighbour a cost of its options, with none a constant. Equal nodes between equal edges
are worked out once.

Source: Jia et al., OptCNN, ICML 2018 (node elimination).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Flat, Ints, ranges
from ..numba_jit import compiled
from ..problem import Floats
from .arc_consistency import incidence

# An edge may take the place of two where it has no more cells, or no more than this.
FEW_CELLS = 1024
MOST_WORK = 4_000_000  # cells times options of one elimination


@dataclass(frozen=True, slots=True, eq=False)
class Removed:
    """Nodes that were removed, and the way back.

    before: the problem they were in.
    kept: its other nodes.
    gone: the removed ones, no two of them neighbours.
    """

    before: Flat
    kept: Ints
    gone: Ints

    def lift(self, choice: Ints) -> Ints:
        """The old problem's choice: each removed node takes its best option."""
        found = np.zeros(self.before.size, dtype=np.int64)
        found[self.kept] = choice
        at, edge = incidence(self.before)
        flat = self.before
        _best(self.gone, flat.first, flat.cost, flat.ends, flat.table, flat.pool, at, edge, found)
        return found

    def project(self, choice: Ints) -> Ints:
        """The new problem's choice that is most like one of the old problem."""
        return choice[self.kept]


@compiled
def _best(
    gone: Ints, first: Ints, cost: Floats, ends: Ints, table: Ints, pool: Floats, at: Ints,
    edge: Ints, choice: Ints,
) -> None:  # fmt: skip
    for v in gone:
        least = np.inf
        for i in range(first[v + 1] - first[v]):
            total = cost[first[v] + i]
            for n in range(at[v], at[v + 1]):
                e = edge[n]
                columns = first[ends[e, 1] + 1] - first[ends[e, 1]]
                if ends[e, 0] == v:
                    total += pool[table[e] + i * columns + choice[ends[e, 1]]]
                else:
                    total += pool[table[e] + choice[ends[e, 0]] * columns + i]
            if total < least:
                least = total
                choice[v] = i


def eliminate_series(flat: Flat) -> tuple[Flat, Removed] | None:
    """Removes such nodes, no two neighbours; None if there are none.

    The new problem may have parallel edges.
    """
    at, edge = incidence(flat)
    using = np.zeros(flat.size, dtype=np.bool_)
    using[flat.owner] = True
    gone = np.flatnonzero(
        _independent(flat.first, flat.ends, at, edge, using, FEW_CELLS, MOST_WORK)
    )
    if not len(gone):
        return None
    degree = np.diff(at)
    kept = np.flatnonzero(np.bincount(gone, minlength=flat.size) == 0)
    cost, constant = flat.cost.copy(), flat.constant
    pairs: list[tuple[int, int]] = []
    tables: list[int] = []
    known: dict[tuple[object, ...], tuple[int, Floats]] = {}
    for v in gone[degree[gone] == 0].tolist():
        constant += float(flat.cost[flat.first[v] : flat.first[v + 1]].min())
    for v in gone[degree[gone] > 0].tolist():
        sides = [_side(flat, v, int(e)) for e in edge[at[v] : at[v + 1]]]
        own = flat.cost[flat.first[v] : flat.first[v + 1]]
        key = (own.tobytes(), *((table, turned, size) for _, table, turned, size in sides))
        if key not in known:
            found = _joined(flat, own, sides)
            known[key] = (flat.tables.size, found)
            if len(sides) == 2:
                flat.tables.grow(found.size)[:] = found.ravel()
        place, found = known[key]
        a = sides[0][0]
        if len(sides) == 1:
            cost[flat.first[a] : flat.first[a + 1]] += found
        else:
            pairs.append((a, sides[1][0]))
            tables.append(place)
    changed = replace(
        flat,
        cost=cost,
        constant=constant,
        ends=np.concatenate((flat.ends, np.array(pairs, dtype=np.int64).reshape(-1, 2))),
        table=np.concatenate((flat.table, np.array(tables, dtype=np.int64))),
    )
    return without(changed, kept), Removed(flat, kept, gone)


@compiled
def _independent(
    first: Ints, ends: Ints, at: Ints, edge: Ints, using: np.ndarray, few: int, most: int
) -> np.ndarray:
    gone = np.zeros(len(first) - 1, dtype=np.bool_)
    for v in range(len(first) - 1):
        degree = at[v + 1] - at[v]
        if using[v] or degree > 2:
            continue
        free, cells, edges = True, 1, 0
        size = first[v + 1] - first[v]
        for n in range(at[v], at[v + 1]):
            w = ends[edge[n], 0] + ends[edge[n], 1] - v
            free = free and not gone[w]
            cells *= first[w + 1] - first[w]
            edges += size * (first[w + 1] - first[w])
        fine = degree < 2 or cells <= edges or cells <= few
        gone[v] = free and fine and cells * size <= most
    return gone


NeighbourTable = tuple[
    int, int, bool, int
]  # neighbour, table, whether its rows are v's, its options


def _side(flat: Flat, v: int, e: int) -> NeighbourTable:
    u, w = flat.ends[e].tolist()
    other = w if u == v else u
    return other, int(flat.table[e]), u == v, int(flat.first[other + 1] - flat.first[other])


def _joined(flat: Flat, own: Floats, sides: list[NeighbourTable]) -> Floats:
    """Least cost for each option of the neighbours, the first one's in rows."""
    tables: list[Floats] = []
    for _, table, rows_are_own, size in sides:
        cells = flat.pool[table : table + size * len(own)]
        tables.append(cells.reshape(len(own), size) if rows_are_own else cells.reshape(size, -1).T)
    if len(tables) == 1:
        return (own[:, None] + tables[0]).min(axis=0)
    out = np.full((sides[0][3], sides[1][3]), np.inf)
    min_plus(np.ascontiguousarray(tables[0]), np.ascontiguousarray(tables[1]), own, out)
    return out


@compiled
def min_plus(left: Floats, right: Floats, own: Floats, out: Floats) -> None:
    """out[i, j] = least of itself and of own[k] + left[k, i] + right[k, j]."""
    for k in range(len(own)):
        for i in range(out.shape[0]):
            head = own[k] + left[k, i]
            if head == np.inf:
                continue
            for j in range(out.shape[1]):
                total = head + right[k, j]
                if total < out[i, j]:
                    out[i, j] = total


def without(flat: Flat, kept: Ints) -> Flat:
    """The part of a problem that concerns some nodes; the others must use no memory."""
    number = np.full(flat.size, -1)
    number[kept] = np.arange(len(kept))
    ends = number[flat.ends]
    inner = (ends >= 0).all(axis=1)
    sizes = flat.sizes[kept]
    return replace(
        flat,
        first=np.concatenate(([0], np.cumsum(sizes))),
        cost=flat.cost[ranges(flat.first[kept], sizes)],
        ends=ends[inner],
        table=flat.table[inner],
        owner=number[flat.owner],
    )
