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
    _sift(
        flat.first, flat.cost, flat.ends, flat.table, flat.pool, at, edge,
        stretch, flat.use_at, flat.use, held, MOST_WORK,
    )  # fmt: skip
    return held


@compiled
def _sift(  # noqa: C901
    first: Ints, cost: Floats, ends: Ints, table: Ints, pool: Floats, at: Ints, edge: Ints,
    stretch: Ints, use_at: Ints, use: Floats, held: np.ndarray, work: int,
) -> None:  # fmt: skip
    widest = 0
    degree = 0
    for v in range(len(first) - 1):
        widest = max(widest, first[v + 1] - first[v])
        degree = max(degree, at[v + 1] - at[v])
    best = np.zeros((widest, degree), dtype=np.int64)  # of each option on each edge
    least = np.zeros(widest)  # of each option on one edge
    least_cost = np.zeros(widest)  # of each option with its best partners
    for v in range(len(first) - 1):
        size = first[v + 1] - first[v]
        if work <= 0:
            break
        for n in range(at[v], at[v + 1]):
            e = edge[n]
            is_first = ends[e, 0] == v
            columns = first[ends[e, 1] + 1] - first[ends[e, 1]]
            rows = first[ends[e, 0] + 1] - first[ends[e, 0]]
            least[:size] = np.inf
            best[:size, n - at[v]] = 0
            for r in range(rows):  # in the order of the table
                for c in range(columns):
                    i, j = (r, c) if is_first else (c, r)
                    if pool[table[e] + r * columns + c] < least[i]:
                        least[i] = pool[table[e] + r * columns + c]
                        best[i, n - at[v]] = j
        for i in range(size):
            least_cost[i] = cost[first[v] + i]
            for n in range(at[v], at[v + 1]):
                e = edge[n]
                columns = first[ends[e, 1] + 1] - first[ends[e, 1]]
                step, stride = (columns, 1) if ends[e, 0] == v else (1, columns)
                least_cost[i] += pool[table[e] + i * step + best[i, n - at[v]] * stride]
        # who is cheap at best replaces most of the others: it is looked at first, and only who is
        # cheaper at best can replace at all
        order = np.argsort(least_cost[:size], kind="mergesort")
        for i in range(size):
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
                for n in range(at[v], at[v + 1]):
                    e = edge[n]
                    columns = first[ends[e, 1] + 1] - first[ends[e, 1]]
                    step, stride = (columns, 1) if ends[e, 0] == v else (1, columns)
                    k = best[i, n - at[v]] * stride
                    most += pool[table[e] + i * step + k] - pool[table[e] + j * step + k]
                if not most >= 0.0:
                    continue
                # then all partners, edge by edge, as long as those after may make up for it
                margin = cost[first[v] + i] - cost[first[v] + j]
                hopeless = -ROUNDING * abs(least_cost[i])
                for n in range(at[v], at[v + 1]):
                    e = edge[n]
                    is_first = ends[e, 0] == v
                    w = ends[e, 1] if is_first else ends[e, 0]
                    columns = first[ends[e, 1] + 1] - first[ends[e, 1]]
                    step, stride = (columns, 1) if is_first else (1, columns)
                    k = best[i, n - at[v]] * stride
                    most -= pool[table[e] + i * step + k] - pool[table[e] + j * step + k]
                    worst = np.inf
                    for k in range(first[w + 1] - first[w]):
                        mine = pool[table[e] + i * step + k * stride]
                        if mine < np.inf:
                            more = mine - pool[table[e] + j * step + k * stride]
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
