"""Finished e-graphs with costs, as input of extraction, and what an extraction is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import RuleError


@dataclass(frozen=True, slots=True)
class ENode:
    """One way to make the value of class `owner` from the values of `children`.

    cost: at least 0, paid once however often the value is used.
    """

    owner: int
    cost: float
    children: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class EGraph:
    """Classes 0..classes-1 of equal values, nodes that make them, and the classes to extract."""

    classes: int
    nodes: tuple[ENode, ...]
    roots: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.roots:
            raise RuleError("there is no root", where="e-graph")
        for i, node in enumerate(self.nodes):
            places = (node.owner, *node.children)
            if not all(0 <= c < self.classes for c in places):
                raise RuleError(f"node {i} names a class that does not exist", where="e-graph")
            if not (math.isfinite(node.cost) and node.cost >= 0):
                raise RuleError(
                    f"node {i} costs {node.cost}, expected a number from 0", where="e-graph"
                )
        if not all(0 <= c < self.classes for c in self.roots):
            raise RuleError("a root is no class", where="e-graph")

    def members(self) -> list[list[int]]:
        """Node numbers of each class."""
        found: list[list[int]] = [[] for _ in range(self.classes)]
        for i, node in enumerate(self.nodes):
            found[node.owner].append(i)
        return found


@dataclass(frozen=True, slots=True)
class Extraction:
    """One node for each class that is needed, without a cycle.

    Cost = sum of the costs of `chosen`, each once.

    lower_bound: no extraction costs less.
    stop: `optimal`, or why the search ended before; `none` if nothing can be built.
    """

    chosen: tuple[int, ...]
    cost: float
    lower_bound: float
    stop: str

    @property
    def optimal(self) -> bool:
        return self.stop == "optimal"


NOTHING = Extraction((), math.inf, math.inf, "none")


def needed(graph: EGraph, choice: Mapping[int, int]) -> tuple[int, ...] | None:
    """The chosen nodes that the roots need, or None if one is missing or needs itself.

    Args:
        graph: what to extract from.
        choice: a node number for classes.
    """
    done: dict[int, bool] = {}  # False while a class is being built
    stack = [(c, False) for c in graph.roots]
    while stack:
        c, built = stack.pop()
        if built:
            done[c] = True
            continue
        if c in done:
            if not done[c]:
                return None
            continue
        if c not in choice:
            return None
        done[c] = False
        stack.append((c, True))
        for child in graph.nodes[choice[c]].children:
            if done.get(child) is False:
                return None
            if child not in done:
                stack.append((child, False))
    return tuple(sorted(choice[c] for c in done))


def total(graph: EGraph, chosen: Iterable[int]) -> float:
    """Cost of a set of nodes."""
    return math.fsum(graph.nodes[i].cost for i in chosen)


def extraction(
    graph: EGraph, choice: Mapping[int, int], lower_bound: float, stop: str
) -> Extraction:
    """What a choice of nodes extracts.

    Raises:
        RuleError: if it is no extraction.
    """
    chosen = needed(graph, choice)
    if chosen is None:
        raise RuleError("the choice is cyclic or lacks a class", where="extraction")
    cost = total(graph, chosen)
    return Extraction(chosen, cost, min(lower_bound, cost), stop)


def components(graph: EGraph) -> list[int]:
    """Number of the strongly connected component of each class.

    Source: Sharir, A strong-connectivity algorithm, 1981: backwards from the classes that a walk
    leaves last.
    """
    below: list[list[int]] = [[] for _ in range(graph.classes)]
    above: list[list[int]] = [[] for _ in range(graph.classes)]
    for node in graph.nodes:
        below[node.owner].extend(node.children)
        for child in node.children:
            above[child].append(node.owner)
    found = [-1] * graph.classes
    for start in reversed(_left(below)):
        if found[start] >= 0:
            continue
        found[start], work = start, [start]
        while work:
            for c in above[work.pop()]:
                if found[c] < 0:
                    found[c] = start
                    work.append(c)
    return found


def _left(below: Sequence[Sequence[int]]) -> list[int]:
    """Classes in the order in which a walk in depth leaves them."""
    order, seen = list[int](), set[int]()
    for start in range(len(below)):
        work = [(start, False)]
        while work:
            c, done = work.pop()
            if done:
                order.append(c)
            elif c not in seen:
                seen.add(c)
                work.append((c, True))
                work += [(child, False) for child in below[c] if child not in seen]
    return order
