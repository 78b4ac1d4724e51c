"""Fixing by reduced costs: what cannot be part of a choice that is cheap enough.

With messages and prices of bound L, any choice with option i at u and j at v costs at least

    L + c'_u(i) - min c'_u + c'_v(j) - min c'_v + e'_uv(i, j) - min e'_uv

so that options and pairs go where this is above what is wanted; see `message_passing.py` for c' and
e'.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..arrays import Flat, Ints, Pool
from ..numba_jit import compiled
from ..problem import Floats
from .message_passing import Lower, Messages

MOST_CELLS = 20_000_000  # tables that are shared by edges come apart: not above this size


def cheap_enough(messages: Messages, lower: Lower, margin: float) -> tuple[Flat, np.ndarray]:
    """The problem with dear pairs forbidden, and the options that are left.

    Args:
        messages: with the prices that `lower` belongs to.
        lower: the bound.
        margin: how far above the bound a choice may cost.
    """
    flat = messages.flat
    held = lower.slack <= margin
    if flat.entries > MOST_CELLS:
        return flat, held
    sizes = flat.sizes
    wide = sizes[flat.ends[:, 0]] * sizes[flat.ends[:, 1]]
    table = np.cumsum(wide) - wide
    pool = np.empty(int(wide.sum()))
    _forbid(
        flat.first, flat.ends, flat.table, flat.pool, messages.into, messages.message,
        messages.mass, table, pool, margin,
    )  # fmt: skip
    return replace(flat, table=table, tables=Pool(pool)), held


@compiled
def _forbid(
    first: Ints, ends: Ints, table: Ints, pool: Floats, into: Ints, message: Floats,
    mass: Floats, place: Ints, out: Floats, margin: float,
) -> None:  # fmt: skip
    lowest = np.empty(len(first) - 1)
    for v in range(len(lowest)):
        lowest[v] = np.inf
        for own in mass[first[v] : first[v + 1]]:
            lowest[v] = own if own < lowest[v] else lowest[v]
    for e in range(len(ends)):
        u, v = ends[e, 0], ends[e, 1]
        rows, columns = first[u + 1] - first[u], first[v + 1] - first[v]
        given, other = message[into[e, 1] : into[e, 1] + columns], mass[first[v] : first[v + 1]]
        least = np.inf
        for i in range(rows):
            row = pool[table[e] + i * columns : table[e] + (i + 1) * columns]
            mine = message[into[e, 0] + i]
            for j in range(columns):
                left = row[j] - mine - given[j]
                least = left if left < least else least
        for i in range(rows):
            row = pool[table[e] + i * columns : table[e] + (i + 1) * columns]
            made = out[place[e] + i * columns : place[e] + (i + 1) * columns]
            above = mass[first[u] + i] - lowest[u] - message[into[e, 0] + i] - least
            for j in range(columns):
                total = above + other[j] - lowest[v] + row[j] - given[j]
                made[j] = row[j] if total <= margin else np.inf
