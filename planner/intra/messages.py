"""Sequential message passing: a lower bound, a good choice, and options that cannot be optimal.

Messages M_uv and prices of memory p_t re-parametrise the problem,

    c'_v(k) = c_v(k) + sum_t p_t m_vt(k) + sum_u M_uv(k)
    e'_uv(i, j) = e_uv(i, j) - M_uv(j) - M_vu(i)

and for any messages and any p >= 0

    L = sum_v min c'_v + sum_uv min e'_uv - sum_t p_t limit_t

bounds every choice that fits from below: it is a dual solution of the linear relaxation. Every
step of a sweep can only raise it.

Source: Kolmogorov, A new look at reweighted message passing, IEEE TPAMI 37(5), 2015 (SRMP).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .compiled import compiled
from .consistency import incidence
from .flat import Flat, Ints, ranges
from .problem import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Lower:
    """A bound, and for every option and pair how far above it any choice with it is, at least."""

    bound: float
    slack: Floats


State = tuple[Floats, Floats, Floats]  # messages, masses, prices


class Messages:
    """Message passing on one problem; every pair must be finite for some option at either end."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        sizes = flat.sizes
        u, v = flat.ends[:, 0], flat.ends[:, 1]
        # messages into the first and into the second end of each edge, one after the other
        self.into = np.stack(
            (np.cumsum(sizes[u]) - sizes[u], sizes[u].sum() + np.cumsum(sizes[v]) - sizes[v]),
            axis=1,
        ).astype(np.int64)
        self.message = np.zeros(int(sizes[u].sum() + sizes[v].sum()))
        self.mass = flat.cost.copy()
        self.seen = flat.cost.copy()  # what a node knew of its options when it was last passed
        self.price = np.zeros(len(flat.limit))
        self.at, self.edge = incidence(flat)
        ahead = np.bincount(u, minlength=flat.size)
        behind = np.bincount(v, minlength=flat.size)
        self.share = 1.0 / np.maximum(np.maximum(ahead, behind), 1)

    def sweep(self) -> None:
        """One pass over the nodes and back."""
        flat = self.flat
        for forward in (True, False):
            _pass(
                forward, flat.first, flat.ends, flat.table, flat.pool, self.at, self.edge,
                self.into, self.share, self.message, self.mass, self.seen,
            )  # fmt: skip

    def pay(self, price: Floats) -> None:
        """Changes the prices of memory."""
        flat = self.flat
        change = np.concatenate(([0.0], np.cumsum(price - self.price)))
        step = change[flat.end] - change[flat.begin]
        counts = flat.sizes[flat.owner]
        np.add.at(
            self.mass, ranges(flat.first[flat.owner], counts),
            flat.use[ranges(flat.use_at, counts)] * np.repeat(step, counts),
        )  # fmt: skip
        self.price = price

    def lower(self) -> Lower:
        """The bound of these messages and prices."""
        flat = self.flat
        slack = np.empty(len(flat.cost))
        total = _bound(
            flat.first, flat.ends, flat.table, flat.pool, self.into, self.message, self.mass, slack
        )
        return Lower(total + flat.constant - float(self.price @ flat.limit), slack)

    def state(self) -> State:
        """What may be gone back to."""
        return self.message.copy(), self.mass.copy(), self.price

    def restore(self, state: State) -> None:
        """Goes back."""
        self.message, self.mass, self.price = state[0].copy(), state[1].copy(), state[2]

    def levelled(self) -> Flat:
        """The same problem in re-parametrised costs, without prices; their least is about zero."""
        flat = self.flat
        self.pay(np.zeros(len(flat.limit)))
        sizes = flat.sizes
        wide = sizes[flat.ends[:, 0]] * sizes[flat.ends[:, 1]]
        table = np.cumsum(wide) - wide
        pool = np.empty(int(wide.sum()))
        cost = np.empty(len(flat.cost))
        total = _levelled(
            flat.first, flat.ends, flat.table, flat.pool, self.into, self.message, self.mass,
            table, cost, pool,
        )  # fmt: skip
        constant = flat.constant + total
        return replace(flat, cost=cost, table=table, pool=pool, constant=constant)

    def round(self, limit: Floats | None = None) -> Ints:
        """A choice: nodes in order, each the best that fits, given the earlier ones.

        limit: of memory at each moment, that of the problem if None.
        """
        flat = self.flat
        room = flat.limit if limit is None else limit
        stretch = np.searchsorted(flat.owner, np.arange(flat.size + 1))
        return _round(
            flat.first, flat.ends, flat.table, flat.pool, self.at, self.edge, self.into,
            self.message, self.mass, stretch, flat.begin, flat.end, flat.use_at, flat.use,
            room.copy(),
        )  # fmt: skip


# Rows are views here and minima comparisons: compilers turn both into wide instructions.


@compiled
def _pass(  # noqa: C901
    forward: bool, first: Ints, ends: Ints, table: Ints, pool: Floats, at: Ints, edge: Ints,
    into: Ints, share: Floats, message: Floats, mass: Floats, seen: Floats,
) -> None:  # fmt: skip
    """At each node: draw in what the edges behind can give, hand it to the edges ahead."""
    count = len(first) - 1
    for step in range(count):
        v = step if forward else count - 1 - step
        own = mass[first[v] : first[v + 1]]
        size = len(own)
        ahead = 0
        for n in range(at[v], at[v + 1]):
            e = edge[n]
            side = 0 if ends[e, 0] == v else 1
            w = ends[e, 1 - side]
            if (w < v) != forward:
                ahead += 1
                continue
            width = first[w + 1] - first[w]
            cells = pool[table[e] : table[e] + size * width]
            mine = message[into[e, side] : into[e, side] + size]
            theirs = message[into[e, 1 - side] : into[e, 1 - side] + width]
            if side == 0:
                for i in range(size):
                    row = cells[i * width : (i + 1) * width]
                    least = np.inf
                    for j in range(width):
                        left = row[j] - theirs[j]
                        least = left if left < least else least
                    own[i] += least - mine[i]
                    mine[i] = least
            else:
                for i in range(size):
                    own[i] -= mine[i]
                    mine[i] = np.inf
                for j in range(width):
                    row, given = cells[j * size : (j + 1) * size], theirs[j]
                    for i in range(size):
                        left = row[i] - given
                        mine[i] = left if left < mine[i] else mine[i]
                for i in range(size):
                    own[i] += mine[i]
        seen[first[v] : first[v + 1]] = own
        if not ahead:
            continue
        for n in range(at[v], at[v + 1]):
            e = edge[n]
            side = 0 if ends[e, 0] == v else 1
            if (ends[e, 1 - side] < v) == forward:
                continue
            mine = message[into[e, side] : into[e, side] + size]
            for i in range(size):
                mine[i] -= own[i] * share[v]
        for i in range(size):
            own[i] -= own[i] * share[v] * ahead


@compiled
def _bound(
    first: Ints, ends: Ints, table: Ints, pool: Floats, into: Ints, message: Floats,
    mass: Floats, slack: Floats,
) -> float:  # fmt: skip
    total = 0.0
    widest = 1
    for v in range(len(first) - 1):
        own, above = mass[first[v] : first[v + 1]], slack[first[v] : first[v + 1]]
        widest = max(widest, len(own))
        least = own.min()
        total += least
        for i in range(len(own)):
            above[i] = own[i] - least
    columns_least = np.empty(widest)
    rows_least = np.empty(widest)
    for e in range(len(ends)):
        u, v = ends[e, 0], ends[e, 1]
        above, beside = slack[first[u] : first[u + 1]], slack[first[v] : first[v + 1]]
        rows, columns = len(above), len(beside)
        cells = pool[table[e] : table[e] + rows * columns]
        given = message[into[e, 1] : into[e, 1] + columns]
        low = columns_least[:columns]
        low[:] = np.inf
        least = np.inf
        for i in range(rows):
            row, mine = cells[i * columns : (i + 1) * columns], message[into[e, 0] + i]
            here = np.inf
            for j in range(columns):
                left = row[j] - given[j] - mine
                low[j] = left if left < low[j] else low[j]
            for j in range(columns):  # apart: each of the loops is a wide one
                left = row[j] - given[j] - mine
                here = left if left < here else here
            rows_least[i] = here
            least = min(least, here)
        total += least
        for i in range(rows):
            above[i] += rows_least[i] - least
        for j in range(columns):
            beside[j] += low[j] - least
    return float(total)


@compiled
def _levelled(
    first: Ints, ends: Ints, table: Ints, pool: Floats, into: Ints, message: Floats,
    mass: Floats, place: Ints, cost: Floats, out: Floats,
) -> float:  # fmt: skip
    total = 0.0
    for v in range(len(first) - 1):
        own, level = mass[first[v] : first[v + 1]], cost[first[v] : first[v + 1]]
        least = own.min()
        total += least
        for i in range(len(own)):
            level[i] = own[i] - least
    for e in range(len(ends)):
        u, v = ends[e, 0], ends[e, 1]
        rows, columns = first[u + 1] - first[u], first[v + 1] - first[v]
        given = message[into[e, 1] : into[e, 1] + columns]
        made = out[place[e] : place[e] + rows * columns]
        for i in range(rows):
            row = pool[table[e] + i * columns : table[e] + (i + 1) * columns]
            mine, left = message[into[e, 0] + i], made[i * columns : (i + 1) * columns]
            for j in range(columns):
                left[j] = row[j] - mine - given[j]
        least = made.min()
        total += least
        for n in range(rows * columns):
            made[n] -= least
    return float(total)


@compiled
def _round(  # noqa: C901
    first: Ints, ends: Ints, table: Ints, pool: Floats, at: Ints, edge: Ints, into: Ints,
    message: Floats, mass: Floats, stretch: Ints, begin: Ints, end: Ints, use_at: Ints,
    use: Floats, room: Floats,
) -> Ints:  # fmt: skip
    count = len(first) - 1
    choice = np.zeros(count, dtype=np.int64)
    widest = 1
    for v in range(count):
        widest = max(widest, first[v + 1] - first[v])
    total = np.empty(widest)
    over = np.empty(widest)
    for v in range(count):
        size = first[v + 1] - first[v]
        for i in range(size):
            total[i] = mass[first[v] + i]
            over[i] = 0.0
        for n in range(at[v], at[v + 1]):
            e = edge[n]
            side = 0 if ends[e, 0] == v else 1
            w = ends[e, 1 - side]
            if w > v:
                continue
            for i in range(size):
                total[i] += pool[table[e] + choice[w] * size + i] - message[into[e, side] + i]
        for s in range(stretch[v], stretch[v + 1]):
            least = np.inf
            for t in range(begin[s], end[s]):
                least = min(least, room[t])
            for i in range(size):
                over[i] = max(over[i], use[use_at[s] + i] - least)
        best = 0
        for i in range(1, size):
            if over[i] < over[best] or (over[i] == over[best] and total[i] < total[best]):
                best = i
        choice[v] = best
        for s in range(stretch[v], stretch[v + 1]):
            for t in range(begin[s], end[s]):
                room[t] -= use[use_at[s] + best]
    return choice
