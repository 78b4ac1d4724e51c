"""Dominated options: another one of the same node is as cheap whatever the others do.

Option j replaces i at node v if it uses no more memory at any moment and

    c_v(i) - c_v(j) + sum_w min_k ( e_vw(i, k) - e_vw(j, k) )  >=  0

over the neighbours w. Of options that replace each other the first is kept. All nodes at once:
replacing an option concerns its own node only, whatever the others have.

Source: Goldstein, Biophysical Journal 66, 1994 (dead-end elimination), with memory added.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Flat, Ints
from ..numba_jit import compiled
from ..problem import Floats
from .arc_consistency import incidence

ROUNDING = 1e-9  # relative: a margin below it is negative, however it is added up
MOST_WORK = 200_000_000  # cells looked at in one call; what is left is looked at by the next one


def undominated(flat: Flat) -> np.ndarray:
    """Options that are not dominated; infinite pairs must be all that is forbidden."""
    held = np.ones(len(flat.cost), dtype=np.bool_)
    at, edge = incidence(flat)
    stretch = np.searchsorted(flat.owner, np.arange(flat.size + 1))
    into, best = _partners(flat)
    _sift(
        flat.first, flat.cost, flat.ends, flat.table, flat.pool, at, edge, into, best,
        stretch, flat.use_at, flat.use, held, MOST_WORK,
    )  # fmt: skip
    return held


def _partners(flat: Flat) -> tuple[Ints, Ints]:
    """The best partner of each option on each edge, table by table.

    Returns:
        [m, 2], where those of the options of both ends of an edge begin; and the partners.
    """
    _, once, kind = np.unique(flat.table, return_index=True, return_inverse=True)
    wide = flat.sizes[flat.ends[once]]
    begin = np.cumsum(wide).reshape(-1, 2) - wide
    best = np.zeros(int(wide.sum()), dtype=np.int64)
    _best(flat.table[once], wide, begin, flat.pool, int(wide.max(initial=0)), best)
    return begin[kind], best


@compiled
def _best(table: Ints, wide: Ints, begin: Ints, pool: Floats, widest: int, best: Ints) -> None:
    least = np.empty(widest)  # of each column
    for t in range(len(table)):
        rows, columns = wide[t]
        row, column = begin[t]
        least[:columns] = np.inf
        for r in range(rows):
            low = np.inf
            for c in range(columns):
                cell = pool[table[t] + r * columns + c]
                if cell < low:
                    low = cell
                    best[row + r] = c
                if cell < least[c]:
                    least[c] = cell
                    best[column + c] = r


@compiled
def _sort(value: Floats, count: int, order: Ints) -> None:
    """Puts the first numbers of `order` in ascending order of value; equal ones stay in order.

    By merging, as NumPy's stable sort does, which takes a second to compile.
    """
    other = np.empty(count, dtype=np.int64)
    for i in range(count):
        order[i] = i
    width = 1
    while width < count:
        for begin in range(0, count, 2 * width):
            middle, end = min(begin + width, count), min(begin + 2 * width, count)
            a, b = begin, middle
            for n in range(begin, end):
                if a < middle and (b >= end or value[order[a]] <= value[order[b]]):
                    other[n] = order[a]
                    a += 1
                else:
                    other[n] = order[b]
                    b += 1
        for n in range(count):
            order[n] = other[n]
        width *= 2


@compiled
def _sift(  # noqa: C901
    first: Ints, cost: Floats, ends: Ints, table: Ints, pool: Floats, at: Ints, edge: Ints,
    into: Ints, best: Ints, stretch: Ints, use_at: Ints, use: Floats, held: np.ndarray, work: int,
) -> None:  # fmt: skip
    widest = 0
    degree = 0
    for v in range(len(first) - 1):
        widest = max(widest, first[v + 1] - first[v])
        degree = max(degree, at[v + 1] - at[v])
    least = np.zeros((degree, widest))  # of each option on each edge
    least_cost = np.zeros(widest)  # of each option with its best partners
    step = np.zeros(degree, dtype=np.int64)  # from option to option in the table of each edge
    stride = np.zeros(degree, dtype=np.int64)  # from partner to partner
    cell = np.zeros(degree, dtype=np.int64)  # of the best partner of an option
    order = np.zeros(widest, dtype=np.int64)
    for v in range(len(first) - 1):
        size, edges = first[v + 1] - first[v], at[v + 1] - at[v]
        if work <= 0:
            break
        for i in range(size):
            least_cost[i] = cost[first[v] + i]
        for n in range(edges):
            e = edge[at[v] + n]
            columns = first[ends[e, 1] + 1] - first[ends[e, 1]]
            step[n], stride[n] = (columns, 1) if ends[e, 0] == v else (1, columns)
            own = into[e, 0 if ends[e, 0] == v else 1]
            for i in range(size):
                least[n, i] = pool[table[e] + i * step[n] + best[own + i] * stride[n]]
                least_cost[i] += least[n, i]
        # who is cheap at best replaces most of the others: it is looked at first, and only who is
        # cheaper at best can replace at all
        _sort(least_cost, size, order)
        for i in range(size):
            for n in range(edges):
                e = edge[at[v] + n]
                own = into[e, 0 if ends[e, 0] == v else 1]
                cell[n] = table[e] + best[own + i] * stride[n]
            hopeless = -ROUNDING * abs(least_cost[i])
            for place in range(size):
                j = order[place]
                if least_cost[j] > least_cost[i]:
                    break
                if i == j or not held[first[v] + j]:
                    continue
                frugal = True
                for s in range(stretch[v], stretch[v + 1]):
                    frugal = frugal and use[use_at[s] + j] <= use[use_at[s] + i]
                if not frugal:
                    continue
                # a look at i's best partners alone settles most pairs
                most = cost[first[v] + i] - cost[first[v] + j]
                for n in range(edges):
                    most += least[n, i] - pool[cell[n] + j * step[n]]
                if not most >= 0.0:
                    continue
                # then all partners, edge by edge, as long as those after may make up for it
                margin = cost[first[v] + i] - cost[first[v] + j]
                for n in range(edges):
                    e = edge[at[v] + n]
                    w = ends[e, 0] + ends[e, 1] - v
                    most -= least[n, i] - pool[cell[n] + j * step[n]]
                    mine, other = table[e] + i * step[n], table[e] + j * step[n]
                    worst = np.inf
                    for k in range(first[w + 1] - first[w]):
                        if pool[mine + k * stride[n]] < np.inf:
                            more = pool[mine + k * stride[n]] - pool[other + k * stride[n]]
                            if more < worst:
                                worst = more
                                if most + worst < hopeless:
                                    break
                    work -= int(first[w + 1] - first[w])
                    margin += worst
                    most += worst
                    if most < hopeless or margin == -np.inf:
                        margin = -np.inf
                        break
                if margin >= 0.0:
                    held[first[v] + i] = False
                    break
