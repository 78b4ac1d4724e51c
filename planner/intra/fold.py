"""Repeated blocks: nodes that look alike are tied, so that a hundred layers cost as much as one.

Two nodes get one class if their costs are one table and their surroundings, out to a few edges,
have the same tables at the same places (colour refinement). In the folded problem every class
chooses once:

    c_A(k) = sum_{a in A} c_a(k) + sum_{edges inside A} e(k, k)
    one edge per (A, B, table), weighted by how often it occurs

Any choice of the folded problem is a choice of the unfolded one at the same cost, so it is an
upper bound. Its bound is none for the unfolded problem; but its messages, divided by how often
their edge occurs, are messages there, and from them the true bound is a few sweeps away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .messages import EdgeMessages
from .problem import Edge, Floats

ROUNDS = 6


@dataclass(frozen=True)
class Folded:
    """The folded problem and the way back.

    of_node[v]: class of node v. of_edge[n]: (folded edge, whether its ends are swapped), or None
    for an edge inside one class.
    """

    node_cost: tuple[Floats, ...]
    edges: tuple[Edge, ...]
    counts: tuple[int, ...]
    of_node: tuple[int, ...]
    of_edge: tuple[tuple[int, bool] | None, ...]

    def lift(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The same choice for every node of a class."""
        return tuple(choice[c] for c in self.of_node)

    def lift_messages(self, messages: Sequence[tuple[Floats, Floats] | None]) -> EdgeMessages:
        """Messages of the folded problem, shared out among the edges they stand for."""
        found: list[tuple[Floats, Floats] | None] = []
        for place in self.of_edge:
            held = None if place is None else messages[place[0]]
            if place is None or held is None:
                found.append(None)
                continue
            count = self.counts[place[0]]
            first, second = held[0] / count, held[1] / count
            found.append((second, first) if place[1] else (first, second))
        return found


def fold(node_cost: Sequence[Floats], edges: Sequence[Edge]) -> Folded:
    """Ties nodes that look alike; equal tables must be one object."""
    colour = _refine(node_cost, edges)
    sums: list[Floats] = [np.zeros(0)] * (max(colour, default=-1) + 1)
    for v, cost in enumerate(node_cost):
        c = colour[v]
        sums[c] = cost.copy() if not sums[c].size else sums[c] + cost
    folded: dict[tuple[int, int, int], int] = {}
    tables: list[tuple[int, int, Floats]] = []
    counts: list[int] = []
    of_edge: list[tuple[int, bool] | None] = []
    for edge in edges:
        a, b = colour[edge.u], colour[edge.v]
        if a == b:
            sums[a] = sums[a] + np.diagonal(edge.cost)
            of_edge.append(None)
            continue
        swapped = a > b
        key = (min(a, b), max(a, b), id(edge.cost) * 2 + swapped)
        if key not in folded:
            folded[key] = len(tables)
            tables.append((key[0], key[1], edge.cost.T if swapped else edge.cost))
            counts.append(0)
        counts[folded[key]] += 1
        of_edge.append((folded[key], swapped))
    made = tuple(
        Edge(a, b, table * count) for (a, b, table), count in zip(tables, counts, strict=True)
    )
    return Folded(tuple(sums), made, tuple(counts), tuple(colour), tuple(of_edge))


def _refine(node_cost: Sequence[Floats], edges: Sequence[Edge]) -> list[int]:
    """Classes of nodes, numbered by first occurrence."""
    colour = _number([id(cost) for cost in node_cost])
    around: list[list[tuple[int, int, int]]] = [[] for _ in node_cost]
    for edge in edges:
        around[edge.u].append((id(edge.cost), 0, edge.v))
        around[edge.v].append((id(edge.cost), 1, edge.u))
    for _ in range(ROUNDS):
        before = max(colour, default=-1)
        colour = _number(
            [
                (colour[v], tuple(sorted((t, side, colour[w]) for t, side, w in near)))
                for v, near in enumerate(around)
            ]
        )
        if max(colour, default=-1) == before:
            break
    return colour


def _number(keys: Sequence[object]) -> list[int]:
    seen: dict[object, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]
