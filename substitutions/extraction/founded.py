"""Which classes an answer builds only from each other, and the rows that forbid it.

Needing c and having every way to build it lead back into a set U of classes is building U from
itself. So whatever U, if c of U is needed then a node of U is chosen that needs nothing of U:

    y_c <= sum of x_n over the nodes n of classes in U that have no child in U

How far an answer x, which may be fractional, founds a class, is the least fixed point of

    f(c) = sum over nodes n of c of  min(x_n, min over children d of f(d))

and where f(c) < y_c, U is found by going from c along the children that keep f low.

Source: loop formulas of logic programs (Lin and Zhao, ASSAT, 2004), as cuts of Steiner problems.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .egraph import EGraph

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

MOST_ROUNDS = 300  # of the fixed point
MOST_CUTS = 150  # of one answer
VIOLATED = 1e-4  # a smaller violation is rounding


@dataclass(frozen=True, slots=True)
class Cut:
    """If class `needed` is needed, one of `nodes` is chosen."""

    needed: int
    nodes: tuple[int, ...]


class Founding:
    """Finds violated cuts of one e-graph."""

    def __init__(self, graph: EGraph) -> None:
        self.graph, self.members = graph, graph.members()
        inner = [i for i, node in enumerate(graph.nodes) if node.children]
        self.inner: Ints = np.array(inner, dtype=np.intp)
        counts = [len(graph.nodes[i].children) for i in inner]
        self.starts: Ints = np.cumsum([0, *counts])[:-1].astype(np.intp)
        below = [d for i in inner for d in graph.nodes[i].children]
        self.below: Ints = np.array(below, dtype=np.intp)
        self.owner: Ints = np.array([node.owner for node in graph.nodes], dtype=np.intp)

    def cuts(self, chosen: Floats, needed: Floats) -> list[Cut]:
        """Violated cuts, the most violated classes first, each set of nodes once.

        Args:
            chosen: x of every node.
            needed: y of every class.
        """
        found = self._founded(chosen)
        gap = needed - found
        order = np.argsort(-gap, kind="stable")
        cuts: dict[tuple[int, ...], Cut] = {}
        for c in order[: 4 * MOST_CUTS]:
            if gap[c] < VIOLATED or len(cuts) >= MOST_CUTS:
                break
            nodes = self._around(int(c), chosen, found)
            if nodes not in cuts and needed[c] - sum(chosen[i] for i in nodes) > VIOLATED:
                cuts[nodes] = Cut(int(c), nodes)
        return list(cuts.values())

    def _founded(self, chosen: Floats) -> Floats:
        found = np.zeros(self.graph.classes)
        through = chosen.copy()
        for _ in range(MOST_ROUNDS):
            if len(self.inner):
                least = np.minimum.reduceat(found[self.below], self.starts)
                through[self.inner] = np.minimum(chosen[self.inner], least)
            fresh = np.zeros(self.graph.classes)
            np.add.at(fresh, self.owner, through)
            if np.all(fresh - found < VIOLATED / 10):
                break
            found = fresh
        return found

    def _around(self, c: int, chosen: Floats, found: Floats) -> tuple[int, ...]:
        """Nodes that lead out of a set around c that is founded too little."""
        inside, work = {c}, [c]
        while work:
            for i in self.members[work.pop()]:
                children = self.graph.nodes[i].children
                if not children or any(d in inside for d in children):
                    continue
                lowest = min(children, key=lambda d: (found[d], d))
                if found[lowest] < chosen[i] - VIOLATED:
                    inside.add(lowest)
                    work.append(lowest)
        return tuple(
            i
            for d in sorted(inside)
            for i in self.members[d]
            if not any(e in inside for e in self.graph.nodes[i].children)
        )
