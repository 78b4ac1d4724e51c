"""Micro-batches in flight: further copies of what a loop's body keeps, held while the loop runs.

A pipeline stage begins a micro-batch before it has finished the last one. What lives from the
forward to the backward pass of one is then held once more for each further one in flight, in the
same state, so that it is a follower of the node that decides on the first copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir import Sharding

from .build import Builder
from .problem import Edge, Floats, IntraProblem
from .records import Built


@dataclass(frozen=True, slots=True)
class Stash:
    """What is held more often than the program says.

    values: flat values; copies: of each; start, end: moments [start, end).
    """

    values: tuple[int, ...]
    copies: int
    start: int
    end: int


def stashed(builder: Builder, built: Built, stash: Stash) -> Built:
    """A built problem with further copies of some values."""
    use: dict[int, Floats] = {}
    for v in stash.values:
        found = _states(built, builder, v)
        if found is not None:
            node, states = found
            type_ = builder.flat.values[v].type
            sizes = np.array([float(s.local_bytes(type_, builder.mesh)) for s in states])
            use[node] = use.get(node, 0.0) + stash.copies * sizes
    rows = tuple((n, stash.start, stash.end, u) for n, u in sorted(use.items()) if u.any())
    more = replace(built, lives=replace(built.lives, held=rows))
    if built.moments is not None:
        return more.watching(more.lives.worst_moments())
    return replace(
        more, problem=_with_followers(built.problem, rows), followed=tuple(row[0] for row in rows)
    )


def _states(built: Built, builder: Builder, v: int) -> tuple[int, Sequence[Sharding]] | None:
    """The node that decides on a value, and the value's state under each of its options."""
    flat = builder.flat
    if v in flat.stacked:
        found = _states(built, builder, flat.stacked[v])
        if found is None:
            return None
        return found[0], [Sharding(((), *s.dims), s.partial) for s in found[1]]
    if v in built.value_node:
        node = built.value_node[v]
        return node, built.refs[node].states
    made = built.maker.get(v)
    if made is None or made[0] not in built.op_node:
        return None
    node = built.op_node[made[0]]
    return node, [s.results[made[1]] for s in built.refs[node].menu]


def _with_followers(
    problem: IntraProblem, rows: Sequence[tuple[int, int, int, Floats]]
) -> IntraProblem:
    costs, usage = list(problem.node_cost), list(problem.usage)
    intervals, edges = list(problem.intervals), list(problem.edges)
    for node, start, end, use in rows:
        size = len(use)
        edges.append(Edge(node, len(costs), np.where(np.eye(size, dtype=bool), 0.0, np.inf)))
        costs.append(np.zeros(size))
        usage.append(use)
        intervals.append((start, end))
    return IntraProblem(tuple(costs), tuple(edges), tuple(usage), tuple(intervals), problem.limit)
