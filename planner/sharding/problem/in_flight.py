"""Micro-batches in flight: further copies of values that a loop's body saves for its backward pass.

A pipeline stage begins a micro-batch before it has finished the previous one. The values that live
from the forward to the backward pass are held once more for each further one in flight, in the same
state, so that these copies follow the node that decides on the first copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...solver.problem import Edge, Floats, IntraProblem
from .build import Builder
from .records import Built


@dataclass(frozen=True, slots=True)
class InFlightBuffers:
    """Values held in more copies than the program has.

    values: flat values; copies: of each; start, end: moments [start, end).
    """

    values: tuple[int, ...]
    copies: int
    start: int
    end: int


def with_in_flight(builder: Builder, built: Built, buffers: InFlightBuffers) -> Built:
    """The built problem with further copies of some values."""
    use: dict[int, Floats] = {}
    for v in buffers.values:
        if built.outline.ends[v] is not None:  # else it is computed from literals alone
            node, states = builder.source(v)
            type_ = builder.flat.values[v].type
            sizes = np.array([float(s.local_bytes(type_, builder.mesh)) for s in states])
            use[node] = use.get(node, 0.0) + buffers.copies * sizes
    rows = tuple((n, buffers.start, buffers.end, u) for n, u in sorted(use.items()) if u.any())
    more = replace(built, live_intervals=replace(built.live_intervals, held=rows))
    if built.moments is not None:
        return more.watching(more.live_intervals.worst_moments())
    return replace(
        more, problem=_with_followers(built.problem, rows), followed=tuple(row[0] for row in rows)
    )


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
    return IntraProblem(
        tuple(costs), tuple(edges), tuple(usage), tuple(intervals), problem.limit, problem.work
    )
