"""Independent components: parts that no edge and no moment of memory joins are decided apart.

Two nodes are joined by an edge, and by a moment at which both use memory. The largest component is
the problem that is left; another one is decided for good where that is easy: by elimination, or by
a small 0/1 programme. Its cost becomes part of the constant.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from ...common.stop import Stop
from ..arrays import Flat, Ints, ranges
from ..numba_jit import compiled
from ..reduce.remap import keeping, remap
from .bucket_elimination import Tables, eliminated
from .ilp import columns, solve_ilp

EASY_COLUMNS, EASY_WORK = 2_000, 1e5


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """Nodes that were decided, and those that are left.

    kept: nodes of the new problem, by their old numbers.
    gone: the others.
    choice: theirs.
    """

    kept: Ints
    gone: Ints
    choice: Ints

    def lift(self, choice: Ints) -> Ints:
        """The old problem's choice."""
        found = np.zeros(len(self.kept) + len(self.gone), dtype=np.int64)
        found[self.kept], found[self.gone] = choice, self.choice
        return found

    def project(self, choice: Ints) -> Ints:
        """The new problem's choice that is most like one of the old problem."""
        return choice[self.kept]


def components(flat: Flat) -> Ints:
    """A number for each node; equal numbers, joined nodes."""
    return _joined(flat.size, flat.ends, flat.owner, flat.begin, flat.end, len(flat.limit))


def decide_apart(flat: Flat, tables: Tables, deadline: float) -> tuple[Flat, Apart] | None:
    """Decides all components that are easy, but for the largest; None if there are none.

    Args:
        flat: the problem; every option must be possible beside some of each neighbour.
        tables: results of elimination.
        deadline: by the monotonic clock.
    """
    label = components(flat)
    names, counts = np.unique(label, return_counts=True)
    constant, gone, chosen = flat.constant, list[Ints](), list[Ints]()
    for name in names[np.argsort(counts, kind="stable")[:-1]].tolist():
        nodes = np.flatnonzero(label == name)
        small = replace(part(flat, nodes), constant=0.0)
        step = keeping(small, np.ones(len(small.cost), dtype=np.bool_))
        tidy = remap(small, step)
        choice = _easy(tidy, tables, deadline)
        if choice is not None:
            gone.append(nodes)
            chosen.append(step.lift(choice))
            constant += small.cost_of(chosen[-1])
    if not gone:
        return None
    kept = np.flatnonzero(~np.isin(np.arange(flat.size), np.concatenate(gone)))
    left = replace(part(flat, kept), constant=constant)
    return left, Apart(kept, np.concatenate(gone), np.concatenate(chosen))


def _easy(flat: Flat, tables: Tables, deadline: float) -> Ints | None:
    """The best choice, if it is found with ease."""
    if not np.isfinite(flat.constant) or flat.limit.min(initial=0.0) < 0.0:
        return None  # there is none
    choice = eliminated(flat, tables, deadline)
    if choice is not None or columns(flat) > EASY_COLUMNS:
        return choice
    found = solve_ilp(flat, time_limit_s=deadline - time.monotonic(), work=EASY_WORK)
    return found.choice if found.stop is Stop.OPTIMAL else None


def part(flat: Flat, nodes: Ints) -> Flat:
    """What of a problem concerns some nodes: whole components."""
    number = np.full(flat.size, -1)
    number[nodes] = np.arange(len(nodes))
    inner, used = number[flat.ends[:, 0]] >= 0, number[flat.owner] >= 0
    sizes = flat.sizes[nodes]
    return replace(
        flat,
        first=np.concatenate(([0], np.cumsum(sizes))),
        cost=flat.cost[ranges(flat.first[nodes], sizes)],
        ends=number[flat.ends[inner]],
        table=flat.table[inner],
        owner=number[flat.owner[used]],
        begin=flat.begin[used],
        end=flat.end[used],
        use_at=flat.use_at[used],
    )


@compiled
def _root(up: Ints, v: int) -> int:
    while up[v] != v:
        up[v] = up[up[v]]
        v = up[v]
    return v


@compiled
def _joined(size: int, ends: Ints, owner: Ints, begin: Ints, end: Ints, moments: int) -> Ints:
    up = np.arange(size + moments)  # nodes, then moments at which some node uses memory
    for e in range(len(ends)):
        up[_root(up, ends[e, 0])] = _root(up, ends[e, 1])
    for k in range(len(owner)):
        for t in range(begin[k], end[k]):
            up[_root(up, size + t)] = _root(up, owner[k])
    return np.array([_root(up, v) for v in range(size)], dtype=np.int64)
