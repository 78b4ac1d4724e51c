"""Large neighbourhoods: parts of a choice are re-solved exactly with the rest held fixed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from .eliminate import Elimination, Tables
from .problem import Edge, Floats

ENTRIES = 40_000  # largest table of a part; a part that needs more is cut down


class Neighbourhoods:
    """Improves choices of one pairwise problem."""

    def __init__(self, node_cost: Sequence[Floats], edges: Sequence[Edge]) -> None:
        self.costs = node_cost
        self.edges = edges
        self.at: list[list[int]] = [[] for _ in node_cost]
        for n, edge in enumerate(edges):
            self.at[edge.u].append(n)
            self.at[edge.v].append(n)

    def improve(
        self,
        choice: Sequence[int],
        order: Sequence[int],
        *,
        size: int,
        deadline: float,
    ) -> tuple[int, ...]:
        """Re-solves the surroundings of each node of `order`, keeping what gets better."""
        current = list(choice)
        done: set[int] = set()
        for seed in order:
            if time.monotonic() > deadline:
                break
            if seed in done:
                continue
            part = self._around(seed, size)
            if self._resolve(current, part):
                done.clear()
            done.update(part[: max(1, len(part) // 4)])
        return tuple(current)

    def _around(self, seed: int, size: int) -> list[int]:
        part, seen = [seed], {seed}
        for v in part:
            for n in self.at[v]:
                w = self.edges[n].v if self.edges[n].u == v else self.edges[n].u
                if w not in seen and len(part) < size:
                    seen.add(w)
                    part.append(w)
        return part

    def _resolve(self, current: list[int], part: list[int]) -> bool:
        position = {v: i for i, v in enumerate(part)}
        costs = [self.costs[v].copy() for v in part]
        inner: list[Edge] = []
        for i, v in enumerate(part):
            for n in self.at[v]:
                edge = self.edges[n]
                w = edge.v if edge.u == v else edge.u
                if w in position:
                    if v == edge.u:
                        inner.append(Edge(i, position[w], edge.cost))
                elif edge.u == v:
                    costs[i] += edge.cost[:, current[w]]
                else:
                    costs[i] += edge.cost[current[w]]
        state = Elimination(costs, inner, Tables())
        state.run(ENTRIES)
        # what is too wide to remove keeps its present option
        held = {i: current[part[i]] for i in sorted(state.alive)}
        answer = state.read_back(held)
        before = _price(costs, inner, [current[v] for v in part])
        after = _price(costs, inner, answer)
        if np.isfinite(before) and not after < before - 1e-12 * abs(before):
            return False
        if not np.isfinite(after):
            return False
        for v, k in zip(part, answer, strict=True):
            current[v] = k
        return True


def _price(costs: Sequence[Floats], edges: Sequence[Edge], choice: Sequence[int]) -> float:
    total = sum(float(c[k]) for c, k in zip(costs, choice, strict=True))
    return total + sum(float(e.cost[choice[e.u], choice[e.v]]) for e in edges)


def seeds(slack: Sequence[Floats], choice: Sequence[int]) -> list[int]:
    """Nodes by how much their chosen option is above the bound: the doubtful ones first."""
    doubt = np.array([float(s[k]) for s, k in zip(slack, choice, strict=True)])
    order = np.argsort(-doubt, kind="stable")
    return [int(v) for v in order if doubt[v] > 0]
