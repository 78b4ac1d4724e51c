"""Followers: nodes whose option is a function of a neighbour's.

If an edge allows every option of u with exactly one option of v, v need not be chosen: it follows
u. Functions compose, so that chains and trees of such edges become one node, and edges within it
become costs of its options.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Flat, Ints
from ..numba_jit import compiled
from ..problem import Floats
from .arc_consistency import incidence
from .remap import Remap

# A follower's edges take on the options of its leader: by so much they may grow.
GROWTH = 2.0


def followers(flat: Flat) -> Remap | None:
    """The map that merges followers into their leaders; None if there are none."""
    at, edge = incidence(flat)
    leader = np.arange(flat.size)
    through = np.full(flat.size, -1)
    _choose(flat.first, flat.ends, flat.table, flat.pool, at, edge, leader, through, GROWTH)
    merged = np.flatnonzero(leader != np.arange(flat.size))
    if not len(merged):
        return None
    return _mapped(flat, leader, through)


@compiled
def _choose(  # noqa: C901
    first: Ints, ends: Ints, table: Ints, pool: Floats, at: Ints, edge: Ints, leader: Ints,
    through: Ints, growth: float,
) -> None:  # fmt: skip
    """A forest: the leader of each node and the edge to it; roots lead themselves.

    Of the functional edges, bijections first, then those whose leader has few more options. The
    leader of a node is a root when it is chosen or below one; a node's root never is the node.
    """
    count = len(first) - 1
    for wanted in range(2):
        for v in range(count):
            if leader[v] != v:
                continue
            size = first[v + 1] - first[v]
            inner = 0  # cells of the edges of v
            for n in range(at[v], at[v + 1]):
                e = edge[n]
                w = ends[e, 0] + ends[e, 1] - v
                inner += size * (first[w + 1] - first[w])
            for n in range(at[v], at[v + 1]):
                e = edge[n]
                u = ends[e, 0] + ends[e, 1] - v
                size_u = first[u + 1] - first[u]
                if size_u < size or (wanted == 0 and size_u != size):
                    continue
                own = size * size_u
                if (inner - own) * size_u > growth * size * inner:
                    continue
                step, stride = (size, 1) if ends[e, 0] == u else (1, size_u)
                functional = True
                for i in range(size_u):
                    partners = 0
                    for j in range(size):
                        if pool[table[e] + i * step + j * stride] < np.inf:
                            partners += 1
                    if partners != 1:
                        functional = False
                        break
                if not functional:
                    continue
                root = u
                while leader[root] != root:
                    root = leader[root]
                if root == v:
                    continue
                leader[v], through[v] = u, e
                break


def _mapped(flat: Flat, leader: Ints, through: Ints) -> Remap:
    sizes = flat.sizes
    count = flat.size
    root = leader.copy()
    while True:
        above = root[root]
        if (above == root).all():
            break
        root = above
    roots = np.flatnonzero(leader == np.arange(count))
    number = np.zeros(count, dtype=np.int64)
    number[roots] = np.arange(len(roots))
    follows = number[root]
    widths = sizes[roots]
    counts = widths[follows]
    at = np.cumsum(counts) - counts
    option = np.empty(int(counts.sum()), dtype=np.int64)
    _compose(flat.first, flat.ends, flat.table, flat.pool, leader, through, at, counts, option)
    return Remap(follows, at, option, widths)


@compiled
def _compose(
    first: Ints, ends: Ints, table: Ints, pool: Floats, leader: Ints, through: Ints, at: Ints,
    counts: Ints, option: Ints,
) -> None:  # fmt: skip
    """Options of each node for those of its root, from the root downwards."""
    count = len(leader)
    done = np.zeros(count, dtype=np.bool_)
    path = np.empty(count, dtype=np.int64)
    for start in range(count):
        depth, v = 0, start
        while not done[v]:
            path[depth] = v
            depth += 1
            if leader[v] == v:
                break
            v = leader[v]
        for d in range(depth - 1, -1, -1):
            v = path[d]
            done[v] = True
            if leader[v] == v:
                for i in range(counts[v]):
                    option[at[v] + i] = i
                continue
            u, e = leader[v], through[v]
            size, size_u = first[v + 1] - first[v], first[u + 1] - first[u]
            step, stride = (size, 1) if ends[e, 0] == u else (1, size_u)
            for i in range(counts[v]):
                row = table[e] + option[at[u] + i] * step
                for j in range(size):
                    if pool[row + j * stride] < np.inf:
                        option[at[v] + i] = j
                        break
