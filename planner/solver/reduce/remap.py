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

from ..arrays import Flat, Ints, Pool
from ..numba_jit import compiled
from ..problem import Floats
from .memory_rows import settle, stretches

NONE = -1
BLOCK = 16  # rows that are turned at a time
HASHED = 1_000_000_007  # a prime; hashes are below it
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
    return Remap(*_kept(flat.first, held))


@compiled
def _kept(first: Ints, held: np.ndarray) -> tuple[Ints, Ints, Ints, Ints]:
    """The fields of `Remap`."""
    count = len(first) - 1
    follows, at = np.empty(count, np.int64), np.empty(count, np.int64)
    option, sizes = np.empty(len(held), np.int64), np.empty(count, np.int64)
    nodes = filled = 0
    for v in range(count):
        at[v] = filled
        for i in range(first[v + 1] - first[v]):
            if held[first[v] + i]:
                option[filled] = i
                filled += 1
        if filled - at[v] > 1:
            follows[v], sizes[nodes] = nodes, filled - at[v]
            nodes += 1
        else:
            follows[v] = NONE
    return follows, at, option[:filled].copy(), sizes[:nodes].copy()


def remap(flat: Flat, by: Remap) -> Flat:
    """The problem read through a map."""
    first = np.concatenate(([0], np.cumsum(by.sizes)))
    cost = np.zeros(int(first[-1]) + 1)  # the last one is the constant
    base = np.append(first[:-1], first[-1])[by.follows]
    counts = by.counts
    _add_nodes(flat.first, flat.cost, by.at, by.option, base, counts, cost)
    ends, table, tables = _edges(flat, by, base, cost)
    settled = flat.owner, flat.begin, flat.end, flat.use_at, flat.use, flat.limit, flat.moment
    if len(flat.owner) or len(flat.limit):
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
    counts, sizes = by.counts, flat.sizes
    lone, members, group, ends = _grouped(a, b, len(by.sizes))
    _add_loops(lone, u, v, a, b, flat.table, flat.pool, sizes, by.at, by.option, counts, base, cost)
    through = _signatures(by.at, by.option, counts, sizes)
    single = _alike(flat.table, through, u, v, a, b, members)
    _sort_within(single, group)
    firsts, kind = _kinds(single, group)
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


@compiled
def _grouped(a: Ints, b: Ints, count: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Old edges by what becomes of them.

    Args:
        a: new node of the first end of each old edge.
        b: that of the second end.
        count: number of new nodes.

    Returns:
        Edges that are no edge any more; those that become part of a new one, new edge by new edge;
        where each new edge begins among them; and its ends, in ascending order.
    """
    lone, members = np.empty(len(a), np.int64), np.empty(len(a), np.int64)
    alone = paired = 0
    for e in range(len(a)):
        if a[e] == b[e] or a[e] == NONE or b[e] == NONE:
            lone[alone] = e
            alone += 1
        else:
            members[paired] = e
            paired += 1
    members = members[:paired].copy()
    for higher in (True, False):  # stable: by the higher end, then by the lower one
        begin, order = np.zeros(count + 1, np.int64), np.empty(paired, np.int64)
        for e in members:
            begin[(max(a[e], b[e]) if higher else min(a[e], b[e])) + 1] += 1
        for r in range(count):
            begin[r + 1] += begin[r]
        for e in members:
            r = max(a[e], b[e]) if higher else min(a[e], b[e])
            order[begin[r]] = e
            begin[r] += 1
        members = order
    group, ends = np.empty(paired + 1, np.int64), np.empty((paired, 2), np.int64)
    made = 0
    for n in range(paired):
        low, high = min(a[members[n]], b[members[n]]), max(a[members[n]], b[members[n]])
        if made and ends[made - 1, 0] == low and ends[made - 1, 1] == high:
            continue
        group[made], ends[made, 0], ends[made, 1] = n, low, high
        made += 1
    group[made] = paired
    return lone[:alone].copy(), members, group[: made + 1].copy(), ends[:made].copy()


@compiled
def _signatures(at: Ints, option: Ints, counts: Ints, sizes: Ints) -> Ints:
    """A number for the options that each node takes; equal numbers, equal options.

    It is negative where a node takes all of its options in order.
    """
    room = 1
    while room < 2 * len(counts):
        room *= 2
    slots, found, made = np.full(room, -1), np.empty(len(counts), np.int64), 0
    for v in range(len(counts)):
        mixed, same = counts[v], counts[v] == sizes[v]
        for i in range(counts[v]):
            same = same and option[at[v] + i] == i
            mixed = (mixed * 31 + option[at[v] + i]) % HASHED
        if same:
            found[v] = -1 - sizes[v]
            continue
        slot = mixed % room
        while slots[slot] >= 0:
            w = slots[slot]
            alike = counts[w] == counts[v]
            for i in range(counts[v] if alike else 0):
                alike = alike and option[at[w] + i] == option[at[v] + i]
            if alike:
                break
            slot = (slot + 1) % room
        if slots[slot] < 0:
            slots[slot], found[v] = v, made
            made += 1
        else:
            found[v] = found[slots[slot]]
    return found


@compiled
def _alike(table: Ints, through: Ints, u: Ints, v: Ints, a: Ints, b: Ints, members: Ints) -> Ints:
    """A number for the way in which each table is read; equal numbers, equal costs.

    Args:
        table: where the costs of each old edge begin.
        through: numbers of the options that nodes take, see `_signatures`.
        u: first end of each old edge.
        v: its second end.
        a: new node of the first end of each old edge.
        b: that of the second end.
        members: old edges that become part of a new one.
    """
    room = 1
    while room < 2 * len(members):
        room *= 2
    slots, found = np.full(room, -1), np.empty(len(members), np.int64)
    for n in range(len(members)):
        e = members[n]
        mixed = (table[e] % HASHED * 31 + through[u[e]]) % HASHED
        mixed = ((mixed * 31 + through[v[e]]) * 2 + (a[e] > b[e])) % HASHED
        slot = mixed % room
        while slots[slot] >= 0:
            o = members[slots[slot]]
            if (
                table[o] == table[e] and through[u[o]] == through[u[e]]
                and through[v[o]] == through[v[e]] and (a[o] > b[o]) == (a[e] > b[e])
            ):  # fmt: skip
                break
            slot = (slot + 1) % room
        if slots[slot] < 0:
            slots[slot] = n
        found[n] = slots[slot]
    return found


@compiled
def _sort_within(numbers: Ints, group: Ints) -> None:
    """Sorts the numbers of each group, which are few."""
    for g in range(len(group) - 1):
        for n in range(group[g] + 1, group[g + 1]):
            one, m = numbers[n], n
            while m > group[g] and numbers[m - 1] > one:
                numbers[m] = numbers[m - 1]
                m -= 1
            numbers[m] = one


@compiled
def _kinds(single: Ints, group: Ints) -> tuple[Ints, Ints]:
    """The first new edge of each kind, and the kind of each; equal kinds, equal tables.

    Args:
        single: numbers of tables, new edge by new edge, see `_alike`; sorted within each.
        group: where each new edge begins among them.
    """
    room = 1
    while room < 2 * len(single):
        room *= 2
    count, slots = len(group) - 1, np.full(room, -1)
    firsts, kind, made = np.empty(count, np.int64), np.empty(count, np.int64), 0
    for g in range(count):
        begin, end = group[g], group[g + 1]
        mixed = end - begin
        for n in range(begin, end):
            mixed = (mixed * 31 + single[n]) % HASHED
        slot = mixed % room
        while slots[slot] >= 0:
            o = group[firsts[slots[slot]]]
            alike = group[firsts[slots[slot]] + 1] - o == end - begin
            for n in range(end - begin if alike else 0):
                alike = alike and single[o + n] == single[begin + n]
            if alike:
                break
            slot = (slot + 1) % room
        if slots[slot] < 0:
            slots[slot], firsts[made] = made, g
            made += 1
        kind[g] = slots[slot]
    return firsts[:made].copy(), kind


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
