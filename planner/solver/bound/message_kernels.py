"""The loops of message passing, see `message_passing.py`.

Rows are views here and minima comparisons: compilers turn both into wide instructions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..arrays import Ints
from ..numba_jit import compiled
from ..problem import Floats

Cells = NDArray[np.float32] | NDArray[np.float64]
BLOCK = 16  # rows that are turned at a time


@compiled
def turn(once: Ints, first: Ints, ends: Ints, table: Ints, cells: Cells, turned: Cells) -> None:
    """Every table column by column."""
    for e in once:
        u, v = ends[e, 0], ends[e, 1]
        rows, columns = first[u + 1] - first[u], first[v + 1] - first[v]
        for begin in range(0, rows, BLOCK):
            end = min(begin + BLOCK, rows)
            for j in range(columns):
                for i in range(begin, end):
                    turned[table[e] + j * rows + i] = cells[table[e] + i * columns + j]


@compiled
def pass_over(  # noqa: C901
    forward: bool, first: Ints, ends: Ints, table: Ints, cells: Cells, turned: Cells, at: Ints,
    edge: Ints, into: Ints, share: Floats, message: Floats, mass: Floats, seen: Floats,
) -> None:  # fmt: skip
    """At each node: draw in what the edges behind can give, hand it to the edges ahead."""
    count = len(first) - 1
    widest = 1
    for v in range(count):
        widest = max(widest, first[v + 1] - first[v])
    lowest, others = np.empty(widest, cells.dtype), np.empty(widest, cells.dtype)
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
            mine = message[into[e, side] : into[e, side] + size]
            theirs = message[into[e, 1 - side] : into[e, 1 - side] + width]
            low, given = lowest[:size], others[:width]
            low[:] = np.inf
            for j in range(width):  # compiles sooner than a copy of arrays
                given[j] = theirs[j]
            source = turned if side == 0 else cells
            for j in range(width):
                row, less = source[table[e] + j * size : table[e] + (j + 1) * size], given[j]
                for i in range(size):
                    left = row[i] - less
                    low[i] = left if left < low[i] else low[i]
            for i in range(size):
                own[i] += low[i] - mine[i]
                mine[i] = low[i]
        for i in range(size):
            seen[first[v] + i] = own[i]
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
def least_of(values: Floats) -> float:
    """The least value; NumPy's own would import all of Numba's array functions with the loop."""
    least = np.inf
    for n in range(len(values)):
        least = values[n] if values[n] < least else least
    return least


@compiled
def bound_of(
    first: Ints, ends: Ints, table: Ints, pool: Floats, into: Ints, message: Floats, mass: Floats
) -> float:
    total = 0.0
    widest = 1
    for v in range(len(first) - 1):
        own = mass[first[v] : first[v + 1]]
        total += least_of(own)
        widest = max(widest, len(own))
    lowest = np.empty(widest)
    for e in range(len(ends)):
        u, v = ends[e, 0], ends[e, 1]
        rows, columns = first[u + 1] - first[u], first[v + 1] - first[v]
        low = lowest[:columns]
        low[:] = np.inf
        for i in range(rows):
            row = pool[table[e] + i * columns : table[e] + (i + 1) * columns]
            mine = message[into[e, 0] + i]
            for j in range(columns):
                left = row[j] - mine
                low[j] = left if left < low[j] else low[j]
        given = message[into[e, 1] : into[e, 1] + columns]
        least = np.inf
        for j in range(columns):
            left = low[j] - given[j]
            least = left if left < least else least
        total += least
    return float(total)


@compiled
def slack_of(
    first: Ints, ends: Ints, table: Ints, pool: Floats, into: Ints, message: Floats, mass: Floats,
    slack: Floats,
) -> None:  # fmt: skip
    level = np.empty(len(mass))
    widest = 1
    for v in range(len(first) - 1):
        own = mass[first[v] : first[v + 1]]
        widest = max(widest, len(own))
        least = least_of(own)
        for i in range(len(own)):
            level[first[v] + i] = slack[first[v] + i] = own[i] - least
    lowest, nearest, rows_nearest = np.empty(widest), np.empty(widest), np.empty(widest)
    for e in range(len(ends)):
        u, v = ends[e, 0], ends[e, 1]
        above, beside = slack[first[u] : first[u + 1]], slack[first[v] : first[v + 1]]
        rows, columns = len(above), len(beside)
        cells = pool[table[e] : table[e] + rows * columns]
        given, other = message[into[e, 1] : into[e, 1] + columns], level[first[v] : first[v + 1]]
        low, near = lowest[:columns], nearest[:columns]
        low[:] = np.inf
        near[:] = np.inf
        for i in range(rows):
            row, mine = cells[i * columns : (i + 1) * columns], message[into[e, 0] + i]
            own = level[first[u] + i]
            for j in range(columns):
                left = row[j] - given[j] - mine
                low[j] = left if left < low[j] else low[j]
                left += own
                near[j] = left if left < near[j] else near[j]
            here = np.inf
            for j in range(columns):  # apart: the loop before is a wide one
                left = row[j] - given[j] - mine + other[j]
                here = left if left < here else here
            rows_nearest[i] = here
        least = least_of(low)
        for i in range(rows):
            above[i] += rows_nearest[i] - least
        for j in range(columns):
            beside[j] += near[j] - least


@compiled
def levelled(
    first: Ints, ends: Ints, table: Ints, pool: Floats, into: Ints, message: Floats,
    mass: Floats, place: Ints, cost: Floats, out: Floats,
) -> float:  # fmt: skip
    total = 0.0
    for v in range(len(first) - 1):
        own, level = mass[first[v] : first[v + 1]], cost[first[v] : first[v + 1]]
        least = least_of(own)
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
        least = least_of(made)
        total += least
        for n in range(rows * columns):
            made[n] -= least
    return float(total)


@compiled
def rounded(  # noqa: C901
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
