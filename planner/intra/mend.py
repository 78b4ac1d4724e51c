"""Small changes to a choice that fits: cheaper, and still within the memory limit."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from .problem import Floats, IntraProblem


class Mender:
    """Relinks and improves choices of one problem."""

    def __init__(self, problem: IntraProblem) -> None:
        self.problem = problem
        self.at: list[list[int]] = [[] for _ in range(problem.size)]  # edges of each node
        for n, edge in enumerate(problem.edges):
            for v in {edge.u, edge.v}:
                self.at[v].append(n)

    def relink(self, feasible: Sequence[int], cheap: Sequence[int]) -> tuple[int, ...]:
        """Moves connected parts of a feasible choice to the cheaper one's, while it still fits."""
        problem = self.problem
        differ = {v for v in range(problem.size) if feasible[v] != cheap[v]}
        current = list(feasible)
        memory = problem.memory(current)
        for part in self._components(differ):
            if not self._change(current, cheap, part) < 0:
                continue
            after = memory.copy()
            for v in part:
                start, end = problem.intervals[v]
                after[start:end] += problem.usage[v][cheap[v]] - problem.usage[v][current[v]]
            if len(after) and after.max() > problem.limit:
                continue
            for v in part:
                current[v] = cheap[v]
            memory = after
        return tuple(current)

    def descend(self, choice: Sequence[int], deadline: float) -> tuple[int, ...]:
        """Gives single nodes cheaper options that fit until there are none."""
        problem = self.problem
        current = list(choice)
        memory = problem.memory(current)
        waiting, again = list(range(problem.size)), [True] * problem.size
        while waiting and time.monotonic() < deadline:
            v = waiting.pop(0)
            again[v] = False
            start, end = problem.intervals[v]
            extra = problem.usage[v] - problem.usage[v][current[v]]
            cost = self._costs(current, v)
            if end > start:
                room = max(problem.limit - float(memory[start:end].max()), 0.0)
                cost = np.where(extra <= room, cost, np.inf)
            k = int(np.argmin(cost))
            if not cost[k] < cost[current[v]] - 1e-12 * abs(cost[k]):
                continue
            if end > start:
                memory[start:end] += extra[k]
            current[v] = k
            for w in sorted({w for n in self.at[v] for w in self._ends(n)}):
                if not again[w]:
                    waiting.append(w)
                    again[w] = True
        return tuple(current)

    def _ends(self, n: int) -> tuple[int, int]:
        return self.problem.edges[n].u, self.problem.edges[n].v

    def _costs(self, current: Sequence[int], v: int) -> Floats:
        """Cost of every option of a node, the others as they are."""
        total = self.problem.node_cost[v].copy()
        for n in self.at[v]:
            edge = self.problem.edges[n]
            if edge.u == edge.v:
                total += np.diagonal(edge.cost)
            elif edge.u == v:
                total += edge.cost[:, current[edge.v]]
            else:
                total += edge.cost[current[edge.u]]
        return total

    def _change(self, current: Sequence[int], target: Sequence[int], part: list[int]) -> float:
        """Cost difference of moving one part to its target options; NaN if both are forbidden."""
        problem, moved = self.problem, set(part)
        before = after = 0.0
        for v in part:
            before += float(problem.node_cost[v][current[v]])
            after += float(problem.node_cost[v][target[v]])
        for n in sorted({n for v in part for n in self.at[v]}):
            edge = problem.edges[n]
            u = target[edge.u] if edge.u in moved else current[edge.u]
            v = target[edge.v] if edge.v in moved else current[edge.v]
            before += float(edge.cost[current[edge.u], current[edge.v]])
            after += float(edge.cost[u, v])
        return after - before

    def _components(self, members: set[int]) -> list[list[int]]:
        """Connected parts of a set of nodes, in order of their first member."""
        parts: list[list[int]] = []
        seen: set[int] = set()
        for first in sorted(members):
            if first in seen:
                continue
            part = [first]
            seen.add(first)
            for v in part:
                near = {w for n in self.at[v] for w in self._ends(n)} & members - seen
                part.extend(sorted(near))
                seen |= near
            parts.append(sorted(part))
        return parts
