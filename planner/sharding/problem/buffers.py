"""Live intervals of the buffers behind the nodes of a problem, and memory over time.

A node of a folded program stands for several buffers, so its use of memory is a number of copies
over time and not one interval. The solver needs intervals: memory is then watched at chosen
moments only, and a node whose number of copies changes between them gets follower nodes, which use
the rest,

    copies = 1 1 3 3 1   ->   1 over all five moments,  2 over the middle two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...solver.problem import Edge, Floats, IntraProblem

Ints = NDArray[np.intp]
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
PARTS = 3  # of the time line; each is watched at its peak


@dataclass(frozen=True, eq=False)
class LiveIntervals:
    """Live intervals of the buffers of a program.

    node: node that decides the size of each buffer; start, end: its moments [start, end).
    usage: for each node the bytes of one buffer by option.
    horizon: number of moments.
    held: copies for micro-batches in flight (`in_flight.py`): node, start, end, and bytes by
        option.
    """

    node: Ints
    start: Ints
    end: Ints
    usage: tuple[Floats, ...]
    horizon: int
    held: tuple[tuple[int, int, int, Floats], ...] = ()

    def memory(self, choice: Sequence[int]) -> Floats:
        """Bytes in use at every moment."""
        used = np.array([float(u[k]) for u, k in zip(self.usage, choice, strict=False)])
        change = np.zeros(self.horizon + 1)
        np.add.at(change, self.start, used[self.node])
        np.add.at(change, self.end, -used[self.node])
        return np.cumsum(change)[: self.horizon] + self.held_bytes(choice)

    def held_bytes(self, choice: Sequence[int]) -> Floats:
        """Bytes of the micro-batches in flight at every moment."""
        found = np.zeros(self.horizon)
        for node, start, end, use in self.held:
            found[start:end] += use[choice[node]]
        return found

    def peak(self, choice: Sequence[int]) -> float:
        """Largest use of memory."""
        return float(self.memory(choice).max(initial=0.0))

    def least_peak(self) -> float:
        """The peak when every node takes the option that uses least: no choice is below it."""
        choice = [int(u.argmin()) if len(u) else 0 for u in self.usage]
        least = replace(self, held=()).memory(choice)
        for _, start, end, use in self.held:
            least[start:end] += use.min(initial=np.inf)
        return float(least.max(initial=0.0))

    def worst_moments(self) -> tuple[int, ...]:
        """Moments at which memory peaks: with everything replicated, split, or in between."""
        order = [np.argsort(u, kind="stable") for u in self.usage]
        found: set[int] = set()
        for share in QUANTILES:
            choice = [int(o[round(share * (len(o) - 1))]) if len(o) else 0 for o in order]
            memory = self.memory(choice)
            for part in np.array_split(np.arange(self.horizon), PARTS):
                if len(part):
                    found.add(int(part[np.argmax(memory[part])]))
        return tuple(sorted(found))

    def copies(self, moments: Sequence[int]) -> NDArray[np.intp]:
        """Buffers of each node (rows) that are alive at each moment (columns)."""
        found = np.zeros((len(self.usage), len(moments)), dtype=np.intp)
        for k, moment in enumerate(moments):
            alive = (self.start <= moment) & (moment < self.end)
            np.add.at(found[:, k], self.node[alive], 1)
        return found


def watched(
    problem: IntraProblem, live_intervals: LiveIntervals, moments: Sequence[int]
) -> tuple[IntraProblem, tuple[int, ...]]:
    """The problem with memory watched at some moments, and the nodes that its followers follow.

    Followers come after the problem's own nodes.
    """
    followed: list[int] = []
    costs, usage = list(problem.node_cost), [np.zeros(len(c)) for c in problem.node_cost]
    intervals, edges = [(0, 0)] * problem.size, list(problem.edges)
    zeros: dict[int, Floats] = {}
    same: dict[int, Floats] = {}
    scaled: dict[tuple[int, int], Floats] = {}
    for node, row in enumerate(live_intervals.copies(moments)):
        use = live_intervals.usage[node]
        if not use.any():
            continue
        for n, (start, end, copies) in enumerate(pieces(row.tolist())):
            times = scaled.setdefault((id(use), copies), use * copies)
            if n == 0:
                usage[node], intervals[node] = times, (start, end)
                continue
            size = len(use)
            costs.append(zeros.setdefault(size, np.zeros(size)))
            usage.append(times)
            intervals.append((start, end))
            apart = same.setdefault(size, np.where(np.eye(size, dtype=bool), 0.0, np.inf))
            edges.append(Edge(node, len(costs) - 1, apart))
            followed.append(node)
    for node, start, end, use in live_intervals.held:
        inside = [n for n, moment in enumerate(moments) if start <= moment < end]
        if inside:
            size = len(use)
            costs.append(zeros.setdefault(size, np.zeros(size)))
            usage.append(use)
            intervals.append((inside[0], inside[-1] + 1))
            apart = same.setdefault(size, np.where(np.eye(size, dtype=bool), 0.0, np.inf))
            edges.append(Edge(node, len(costs) - 1, apart))
            followed.append(node)
    found = IntraProblem(
        tuple(costs), tuple(edges), tuple(usage), tuple(intervals), problem.limit, problem.work
    )
    return found, tuple(followed)


def pieces(copies: Sequence[int]) -> list[tuple[int, int, int]]:
    """A row of numbers as a sum of blocks (start, end, height)."""
    left, found = list(copies), list[tuple[int, int, int]]()
    at = 0
    while at < len(left):
        if left[at] <= 0:
            at += 1
            continue
        end = at
        while end < len(left) and left[end] > 0:
            end += 1
        height = min(left[at:end])
        found.append((at, end, height))
        left[at:end] = [n - height for n in left[at:end]]
    return found
