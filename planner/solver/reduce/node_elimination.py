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
HASHED = 1_000_000_007  # a prime; hashes are below it


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
    degree = np.diff(at)[gone]
    kept = np.flatnonzero(np.bincount(gone, minlength=flat.size) == 0)
    cost, constant = flat.cost.copy(), flat.constant
    for v in gone[degree == 0].tolist():
        constant += float(flat.cost[flat.first[v] : flat.first[v + 1]].min())
    ends, first = flat.ends, flat.first
    _to_neighbours(gone[degree == 1], first, flat.cost, ends, flat.table, flat.pool, at, edge, cost)
    inner = gone[degree == 2]
    pairs, tables = _series(flat, inner, edge[at[inner, None] + np.arange(2)])
    changed = replace(
        flat,
        cost=cost,
        constant=constant,
        ends=np.concatenate((ends, pairs)),
        table=np.concatenate((flat.table, tables)),
    )
    return without(changed, kept), Removed(flat, kept, gone)


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


def _series(flat: Flat, nodes: Ints, edges: Ints) -> tuple[Ints, Ints]:
    """The ends of the edges in the place of nodes, and their tables; equal ones are made once.

    Args:
        flat: the problem.
        nodes: with two edges each, no two neighbours.
        edges: [n, 2], theirs.
    """
    first, ends = flat.first, flat.ends[edges]
    others = ends.sum(axis=2) - nodes[:, None]
    own_rows = ends[:, :, 0] == nodes[:, None]
    sides = np.concatenate((flat.table[edges], own_rows, flat.sizes[others]), axis=1)
    made = _first_alike(nodes, sides, first, flat.cost.view(np.int64))
    new = np.flatnonzero(made == np.arange(len(nodes)))
    cells = sides[new, 4] * sides[new, 5]
    places = np.zeros(len(nodes), dtype=np.int64)
    places[new] = flat.tables.size + np.cumsum(cells) - cells
    flat.tables.grow(int(cells.sum()))
    _join_all(nodes[new], sides[new], first, flat.cost, places[new], flat.pool)
    return others, places[made]


@compiled
def _first_alike(nodes: Ints, sides: Ints, first: Ints, bits: Ints) -> Ints:
    """For each node the first with the same sides, and bits of the costs of its options."""
    room = 1
    while room < 2 * len(nodes):
        room *= 2
    slots, found = np.full(room, -1), np.zeros(len(nodes), dtype=np.int64)
    for n in range(len(nodes)):
        begin, size = first[nodes[n]], first[nodes[n] + 1] - first[nodes[n]]
        mixed = size
        for k in range(6):
            mixed = (mixed * 31 + sides[n, k]) % HASHED
        for i in range(size):
            mixed = (mixed * 31 + bits[begin + i] % HASHED) % HASHED
        slot = mixed % room
        while slots[slot] >= 0:
            m = slots[slot]
            same = first[nodes[m] + 1] - first[nodes[m]] == size
            for k in range(6):
                same = same and sides[m, k] == sides[n, k]
            for i in range(size if same else 0):
                same = same and bits[first[nodes[m]] + i] == bits[begin + i]
            if same:
                break
            slot = (slot + 1) % room
        if slots[slot] < 0:
            slots[slot] = n
        found[n] = slots[slot]
    return found


@compiled
def _join_all(
    nodes: Ints, sides: Ints, first: Ints, cost: Floats, places: Ints, pool: Floats
) -> None:
    """Fills in the tables of edges in the place of nodes, the first neighbour's options in rows."""
    for n in range(len(nodes)):
        own = cost[first[nodes[n]] : first[nodes[n] + 1]]
        left, right = np.empty((len(own), sides[n, 4])), np.empty((len(own), sides[n, 5]))
        for side in range(2):
            table, size = left if side == 0 else right, sides[n, 4 + side]
            for k in range(len(own)):
                for i in range(size):
                    cell = k * size + i if sides[n, 2 + side] else i * len(own) + k
                    table[k, i] = pool[sides[n, side] + cell]
        rows, columns = sides[n, 4], sides[n, 5]
        out = pool[places[n] : places[n] + rows * columns].reshape(rows, columns)
        out[:] = np.inf
        min_plus(left, right, own, out)


@compiled
def _to_neighbours(
    gone: Ints, first: Ints, cost: Floats, ends: Ints, table: Ints, pool: Floats, at: Ints,
    edge: Ints, changed: Floats,
) -> None:  # fmt: skip
    """Adds nodes with one edge to the costs of their neighbours' options."""
    for v in gone:
        e, size = edge[at[v]], first[v + 1] - first[v]
        w = ends[e, 0] + ends[e, 1] - v
        others = first[w + 1] - first[w]
        for j in range(others):
            least = np.inf
            for i in range(size):
                cell = i * others + j if ends[e, 0] == v else j * size + i
                least = min(least, cost[first[v] + i] + pool[table[e] + cell])
            changed[first[w] + j] += least


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
