"""Options that cannot be part of any choice: arc consistency, and use beyond what is left.

An option goes if its cost is infinite, if it uses more than is left at some moment when all other
nodes use least, or if an edge forbids it with every option left at the other end.

Source: Mackworth, Consistency in networks of relations, Artificial Intelligence 8, 1977 (AC-3).
"""

from __future__ import annotations

import numpy as np

from ..arrays import Flat, Ints
from ..numba_jit import compiled
from ..problem import Floats

Mask = np.ndarray


def consistent(flat: Flat) -> Mask:
    """Options that may be part of a choice; a node without any proves that there is none."""
    held = np.isfinite(flat.cost)
    _fitting(flat.owner, flat.begin, flat.end, flat.use_at, flat.use, flat.limit, flat.first, held)
    at, edge = incidence(flat)
    _revise(flat.first, flat.ends, flat.table, flat.pool, at, edge, held)
    return held


def incidence(flat: Flat) -> tuple[Ints, Ints]:
    """Edges of each node: where they begin, and the edges."""
    return _incidence(flat.ends, flat.size)


@compiled
def _incidence(ends: Ints, count: int) -> tuple[Ints, Ints]:
    at, edge = np.zeros(count + 1, np.int64), np.empty(2 * len(ends), np.int64)
    for e in range(len(ends)):
        at[ends[e, 0] + 1] += 1
        at[ends[e, 1] + 1] += 1
    for v in range(count):
        at[v + 1] += at[v]
    filled = at[:-1].copy()
    for e in range(len(ends)):
        for side in range(2):
            edge[filled[ends[e, side]]] = e
            filled[ends[e, side]] += 1
    return at, edge


@compiled
def _fitting(
    owner: Ints, begin: Ints, end: Ints, use_at: Ints, use: Floats, limit: Floats, first: Ints,
    held: Mask,
) -> None:  # fmt: skip
    for k in range(len(owner)):
        v = owner[k]
        most = -np.inf
        for i in range(first[v + 1] - first[v]):
            most = max(most, use[use_at[k] + i])
        least = np.inf
        for t in range(begin[k], end[k]):
            least = min(least, limit[t])
        if most <= least:
            continue
        for i in range(first[v + 1] - first[v]):
            if use[use_at[k] + i] > least:
                held[first[v] + i] = False


@compiled
def _revise(  # noqa: C901
    first: Ints, ends: Ints, table: Ints, pool: Floats, at: Ints, edge: Ints, held: Mask
) -> None:
    """Looks at every node, and again at the neighbours of those that lost options."""
    count = len(first) - 1
    queue = np.arange(count)
    waiting = np.ones(count, dtype=np.bool_)
    head, length = 0, count
    while length:
        v = queue[head]
        head, length = (head + 1) % count, length - 1
        waiting[v] = False
        lost = False
        for n in range(at[v], at[v + 1]):
            e = edge[n]
            is_first = ends[e, 0] == v
            w = ends[e, 1] if is_first else ends[e, 0]
            columns = first[ends[e, 1] + 1] - first[ends[e, 1]]
            step, stride = (columns, 1) if is_first else (1, columns)
            for i in range(first[v + 1] - first[v]):
                if not held[first[v] + i]:
                    continue
                supported = False
                for j in range(first[w + 1] - first[w]):
                    if held[first[w] + j] and pool[table[e] + i * step + j * stride] < np.inf:
                        supported = True
                        break
                if not supported:
                    held[first[v] + i] = False
                    lost = True
        if not lost:
            continue
        for n in range(at[v], at[v + 1]):
            e = edge[n]
            w = ends[e, 1] if ends[e, 0] == v else ends[e, 0]
            if not waiting[w]:
                waiting[w] = True
                queue[(head + length) % count] = w
                length += 1
