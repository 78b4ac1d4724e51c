"""Descent: single nodes take a better option that fits, until there is none."""

from __future__ import annotations

import numpy as np

from ..arrays import Flat, Ints
from ..numba_jit import compiled
from ..problem import Floats
from ..reduce.arc_consistency import incidence


class Descent:
    """Improves choices of one problem."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.at, self.edge = incidence(flat)
        self.stretch = np.searchsorted(flat.owner, np.arange(flat.size + 1))

    def improve(self, choice: Ints) -> Ints:
        """A choice that no single change makes better; what fits stays so."""
        flat = self.flat
        found = choice.copy()
        _descend(
            found, flat.first, flat.cost, flat.ends, flat.table, flat.pool, self.at, self.edge,
            self.stretch, flat.begin, flat.end, flat.use_at, flat.use, flat.room(found),
        )  # fmt: skip
        return found


@compiled
def _descend(  # noqa: C901
    choice: Ints, first: Ints, cost: Floats, ends: Ints, table: Ints, pool: Floats, at: Ints,
    edge: Ints, stretch: Ints, begin: Ints, end: Ints, use_at: Ints, use: Floats, room: Floats,
) -> None:  # fmt: skip
    count = len(first) - 1
    widest = 1
    for v in range(count):
        widest = max(widest, first[v + 1] - first[v])
    total = np.empty(widest)
    queue = np.arange(count)
    waiting = np.ones(count, dtype=np.bool_)
    head, length = 0, count
    while length:
        v = queue[head]
        head, length = (head + 1) % count, length - 1
        waiting[v] = False
        size, now = first[v + 1] - first[v], choice[v]
        for i in range(size):
            total[i] = cost[first[v] + i]
        for n in range(at[v], at[v + 1]):
            e = edge[n]
            u, w = ends[e, 0], ends[e, 1]
            if u == v:
                columns = first[w + 1] - first[w]
                for i in range(size):
                    total[i] += pool[table[e] + i * columns + choice[w]]
            else:
                row = table[e] + choice[u] * size
                for i in range(size):
                    total[i] += pool[row + i]
        better = False
        for i in range(size):
            better = better or total[i] < total[now] - 1e-12 * abs(total[now])
        if not better:
            continue
        for s in range(stretch[v], stretch[v + 1]):
            least = np.inf
            for t in range(begin[s], end[s]):
                least = min(least, room[t])
            for i in range(size):
                more = use[use_at[s] + i] - use[use_at[s] + now]
                if more > 0.0 and more > least:
                    total[i] = np.inf
        best = now
        for i in range(size):
            if total[i] < total[best]:
                best = i
        if not total[best] < total[now] - 1e-12 * abs(total[now]):
            continue
        choice[v] = best
        for s in range(stretch[v], stretch[v + 1]):
            change = use[use_at[s] + best] - use[use_at[s] + now]
            for t in range(begin[s], end[s]):
                room[t] -= change
        for n in range(at[v], at[v + 1]):
            w = ends[edge[n], 0] + ends[edge[n], 1] - v
            if not waiting[w]:
                waiting[w] = True
                queue[(head + length) % count] = w
                length += 1
