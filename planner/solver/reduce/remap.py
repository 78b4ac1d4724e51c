"""The one step that all reductions are made of: every node is read off a node of a new problem.

A map says of every node v which new node r(v) it follows and which option f_v(i) it takes for each
option i of r(v); a node may also follow nothing and take one option in any case. So

    leaving options out     r(v) = v, f_v injective
    a decided node          r(v) = none
    merged nodes            r(u) = r(v)

Costs of nodes, edges and use are read through the maps and added up where they meet, so that
parallel edges, loops and constants disappear on the way. The new problem's choices are choices of
the old one at the same cost and use; which ones are lost, the reduction that made the map answers
for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Flat, Ints, Pool, ranges
from ..numba_jit import compiled
from ..problem import Floats
from .memory_rows import settle, stretches

NONE = -1
BLOCK = 16  # rows that are turned at a time
LIVE = 0.5  # the share of a pool that a problem must use to stay in it


@dataclass(frozen=True, slots=True, eq=False)
class Remap:
    """Which new node each old one follows, and how.

    follows: [n], the new node or NONE.
    at: [n], where the options of a node begin in `option`.
    option: for each option of the followed node, the old node's option; one entry for NONE.
    sizes: options of the new nodes.
    """

    follows: Ints
    at: Ints
    option: Ints
    sizes: Ints

    def lift(self, choice: Ints) -> Ints:
        """The old problem's choice."""
        known = np.append(choice, 0)  # what follows nothing has one entry
        return self.option[self.at + known[self.follows]]

    def project(self, choice: Ints) -> Ints:
        """The new problem's choice that is most like one of the old problem."""
        place = np.concatenate(([0], np.cumsum(self.sizes)))
        return _likest(self.follows, self.at, self.option, self.sizes, place, choice)

    @property
    def counts(self) -> Ints:
        """Entries of each old node."""
        return np.append(self.sizes, 1)[self.follows]


@compiled
def _likest(follows: Ints, at: Ints, option: Ints, sizes: Ints, place: Ints, choice: Ints) -> Ints:
    count = len(sizes)
    alike = np.zeros(place[-1], dtype=np.int64)
    for v in range(len(follows)):
        r = follows[v]
        if r < 0:
            continue
        for i in range(sizes[r]):
            if option[at[v] + i] == choice[v]:
                alike[place[r] + i] += 1
    found = np.zeros(count, dtype=np.int64)
    for r in range(count):
        for i in range(1, sizes[r]):
            if alike[place[r] + i] > alike[place[r] + found[r]]:
                found[r] = i
    return found


def keeping(flat: Flat, held: np.ndarray) -> Remap:
    """The map that leaves out options; nodes with one option left are decided.

    Args:
        flat: the problem.
        held: [L], options to keep, at least one per node.
    """
    node = np.repeat(np.arange(flat.size), flat.sizes)
    left = np.bincount(node[held], minlength=flat.size)
    open_nodes = left > 1
    follows = np.where(open_nodes, np.cumsum(open_nodes) - 1, NONE)
    option = np.flatnonzero(held) - flat.first[:-1][node[held]]
    return Remap(follows, np.cumsum(left) - left, option, left[open_nodes])


def remap(flat: Flat, by: Remap) -> Flat:
    """The problem read through a map."""
    first = np.concatenate(([0], np.cumsum(by.sizes)))
    cost = np.zeros(int(first[-1]) + 1)  # the last one is the constant
    base = np.append(first[:-1], first[-1])[by.follows]
    counts = by.counts
    _add_nodes(flat.first, flat.cost, by.at, by.option, base, counts, cost)
    ends, table, tables = _edges(flat, by, base, cost)
    memory = stretches(flat, by.follows, by.at, by.option, by.sizes)
    settled = settle(memory, flat.limit, flat.moment)
    return Flat(
        first, cost[:-1], ends, table, tables, *settled, flat.constant + float(cost[-1]),
    )  # fmt: skip


@compiled
def _add_nodes(
    first: Ints, cost: Floats, at: Ints, option: Ints, base: Ints, counts: Ints, total: Floats
) -> None:
    for v in range(len(counts)):
        for i in range(counts[v]):
            total[base[v] + i] += cost[first[v] + option[at[v] + i]]


# --- edges -------------------------------------------------------------------------------------


def _edges(flat: Flat, by: Remap, base: Ints, cost: Floats) -> tuple[Ints, Ints, Pool]:
    """New edges with their tables; what is no edge any more is added to `cost`.

    Tables that stay as they are stay where they are, if they are a good share of all.
    """
    # of equal layout, whatever their length, so that loops over them are compiled once
    u, v = np.ascontiguousarray(flat.ends.T)
    a, b = by.follows[u], by.follows[v]
    pair = (a != b) & (a != NONE) & (b != NONE)
    counts, sizes = by.counts, flat.sizes
    lone = np.flatnonzero(~pair)
    _add_loops(lone, u, v, a, b, flat.table, flat.pool, sizes, by.at, by.option, counts, base, cost)
    members = np.flatnonzero(pair)
    low, high = np.minimum(a, b)[members], np.maximum(a, b)[members]
    order = np.lexsort((high, low))
    members, low, high = members[order], low[order], high[order]
    fresh = np.ones(len(members), dtype=bool)
    fresh[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    begins = np.flatnonzero(fresh)
    ends = np.stack((low[begins], high[begins]), axis=1)
    group = np.append(begins, len(members))
    through = _signatures(flat, by)
    firsts, kind = _kinds(flat, through, members, a, b, group)
    wide = by.sizes[ends[:, 0]] * by.sizes[ends[:, 1]]
    only = members[group[firsts]]
    same = (group[firsts + 1] - group[firsts] == 1) & (a[only] < b[only])
    same &= (through[u[only]] < 0) & (through[v[only]] < 0)
    tables = flat.tables
    if wide[firsts[same]].sum() < LIVE * tables.size:
        same[:], tables = False, Pool()
    place = flat.table[only]
    made = wide[firsts[~same]]
    place[~same] = tables.size + np.cumsum(made) - made
    pool, out = flat.pool, tables.grow(int(made.sum()))
    _add_pairs(
        firsts[~same], np.cumsum(made) - made, group, members, u, v, a, b, flat.table, pool,
        sizes, by.at, by.option, counts, out,
    )  # fmt: skip
    return ends, place[kind], tables


def _kinds(
    flat: Flat, through: Ints, members: Ints, a: Ints, b: Ints, group: Ints
) -> tuple[Ints, Ints]:
    """The first new edge of each kind, and the kind of each; equal kinds, equal tables.

    Args:
        flat: the problem.
        through: numbers of the options that nodes take, see `_signatures`.
        members: old edges that become part of a new one, new edge by new edge.
        a: new node of the first end of each old edge.
        b: that of the second end.
        group: where each new edge begins in `members`.
    """
    u, v = flat.ends[members, 0], flat.ends[members, 1]
    few = through - through.min(initial=0)
    ways = (few[u] * (few.max(initial=0) + 1) + few[v]) * 2 + (a[members] > b[members])
    way = np.unique(ways, return_inverse=True)[1]
    tables = flat.table[members] * (len(way) + 1) + way
    single = np.unique(tables, return_inverse=True)[1]
    width = np.diff(group)
    kind = single[group[:-1]] if len(width) else single
    top = int(single.max(initial=-1)) + 1
    known: dict[bytes, int] = {}
    for e in np.flatnonzero(width > 1).tolist():
        key = np.sort(single[group[e] : group[e + 1]]).tobytes()
        kind[e] = known.setdefault(key, top + len(known))
    _, firsts, kind = np.unique(kind, return_index=True, return_inverse=True)
    return firsts, kind


def _signatures(flat: Flat, by: Remap) -> Ints:
    """A number for the options that each node takes; equal numbers, equal options."""
    counts, sizes = by.counts, flat.sizes
    node = np.repeat(np.arange(flat.size), counts)
    place = ranges(np.zeros(flat.size, dtype=np.int64), counts)
    moved = by.option[ranges(by.at, counts)] != place
    same = (counts == sizes) & (np.bincount(node[moved], minlength=flat.size) == 0)
    found = -1 - sizes
    known: dict[bytes, int] = {}
    for v in np.flatnonzero(~same).tolist():
        key = by.option[by.at[v] : by.at[v] + counts[v]].tobytes()
        found[v] = known.setdefault(key, len(known))
    return found


@compiled
def _add_loops(
    lone: Ints, u: Ints, v: Ints, a: Ints, b: Ints, table: Ints, pool: Floats, sizes: Ints,
    at: Ints, option: Ints, counts: Ints, base: Ints, cost: Floats,
) -> None:  # fmt: skip
    """Edges whose ends follow one node, or of which one end is decided."""
    for n in range(len(lone)):
        e = lone[n]
        x, y = u[e], v[e]
        target = base[x] if b[e] == NONE else base[y]
        for i in range(max(counts[x], counts[y])):
            row = option[at[x] + (i if a[e] != NONE else 0)]
            column = option[at[y] + (i if b[e] != NONE else 0)]
            cost[target + i] += pool[table[e] + row * sizes[y] + column]


@compiled
def _add_pairs(  # noqa: C901
    firsts: Ints, place: Ints, group: Ints, members: Ints, u: Ints, v: Ints, a: Ints, b: Ints,
    table: Ints, pool: Floats, sizes: Ints, at: Ints, option: Ints, counts: Ints, out: Floats,
) -> None:  # fmt: skip
    for n in range(len(firsts)):
        for m in range(group[firsts[n]], group[firsts[n] + 1]):
            e = members[m]
            x, y = u[e], v[e]
            rows, columns = option[at[x] : at[x] + counts[x]], option[at[y] : at[y] + counts[y]]
            wide, high, size = len(columns), len(rows), sizes[y]
            made = out[place[n] : place[n] + high * wide]
            if a[e] <= b[e]:
                whole = wide == size
                for j in range(wide):
                    whole = whole and columns[j] == j
                for i in range(high):
                    row = pool[table[e] + rows[i] * size : table[e] + (rows[i] + 1) * size]
                    line = made[i * wide : (i + 1) * wide]
                    if whole:
                        for j in range(wide):
                            line[j] += row[j]
                    else:
                        for j in range(wide):
                            line[j] += row[columns[j]]
                continue
            for begin in range(0, high, BLOCK):  # rows become columns, some at a time
                end = min(begin + BLOCK, high)
                for j in range(wide):
                    for i in range(begin, end):
                        made[j * high + i] += pool[table[e] + rows[i] * size + columns[j]]
