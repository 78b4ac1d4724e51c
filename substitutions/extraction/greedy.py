"""Greedy extraction: quick, valid, and no more than an upper bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from .egraph import NOTHING, EGraph, Extraction, extraction, needed


def greedy_tree(graph: EGraph) -> Extraction:
    """Each class by the node of least tree cost: shared values are counted at every use.

    tree(c) = min over nodes n of c of  cost(n) + sum over children d of  tree(d)
    """
    best, choice = [math.inf] * graph.classes, dict[int, int]()

    def improves(i: int) -> bool:
        node = graph.nodes[i]
        cost = node.cost + math.fsum(best[child] for child in node.children)
        if cost >= best[node.owner]:
            return False
        best[node.owner], choice[node.owner] = cost, i
        return True

    _settled(graph, improves)
    return _found(graph, choice)


def greedy_dag(graph: EGraph, prices: Sequence[float] | None = None) -> Extraction:
    """Each class by the node whose whole DAG is cheapest, with shared values counted once.

    Every class remembers the classes of its best DAG so far; a node is priced by the union of
    those of its children. The sets of parents are not always brought up to date, so the DAG that
    comes out may cost less than it was priced.

    Args:
        graph: what to extract from.
        prices: other costs of nodes that guide the choice.
    """
    price = prices or [node.cost for node in graph.nodes]
    best: list[dict[int, float] | None] = [None] * graph.classes
    sums, choice = [math.inf] * graph.classes, dict[int, int]()

    def improves(i: int) -> bool:
        node = graph.nodes[i]
        sets = [best[child] for child in node.children]
        held = [found for found in sets if found is not None]
        if len(held) < len(sets):
            return False
        if held and price[i] + max(sums[child] for child in node.children) >= sums[node.owner]:
            return False
        whole: dict[int, float] = {}
        for found in sorted(held, key=len, reverse=True):
            whole = whole | found if whole else dict(found)
        if node.owner in whole:
            return False
        whole[node.owner] = price[i]
        cost = math.fsum(whole.values())
        if cost >= sums[node.owner]:
            return False
        best[node.owner], sums[node.owner], choice[node.owner] = whole, cost, i
        return True

    _settled(graph, improves)
    return _found(graph, choice)


def _settled(graph: EGraph, improves: Callable[[int], bool]) -> None:
    """Visits all nodes, then those that use an improved class, until none improves."""
    uses = parents(graph)
    work = dict.fromkeys(range(len(graph.nodes)))
    while work:
        i = next(iter(work))
        del work[i]
        if improves(i):
            work.update(dict.fromkeys(uses[graph.nodes[i].owner]))


def parents(graph: EGraph) -> list[list[int]]:
    """The nodes that use each class."""
    found: list[list[int]] = [[] for _ in range(graph.classes)]
    for i, node in enumerate(graph.nodes):
        for child in dict.fromkeys(node.children):
            found[child].append(i)
    return found


def _acyclic(graph: EGraph, choice: Mapping[int, int]) -> dict[int, int]:
    """The choice where it can be built; other classes by any node that can be built on these."""
    waits = [len(set(node.children)) for node in graph.nodes]
    uses, done, liked = parents(graph), dict[int, int](), set(choice.values())
    ready, spare = list[int](), list[int]()

    def offer(i: int) -> None:
        (ready if i in liked else spare).append(i)

    for i, count in enumerate(waits):
        if not count:
            offer(i)
    while ready or spare:
        i = ready.pop() if ready else spare.pop()
        owner = graph.nodes[i].owner
        if owner in done:
            continue
        done[owner] = i
        for j in uses[owner]:
            waits[j] -= 1
            if not waits[j]:
                offer(j)
    return done


def _found(graph: EGraph, choice: Mapping[int, int]) -> Extraction:
    if any(root not in choice for root in graph.roots):
        return NOTHING
    if needed(graph, choice) is None:  # sets of parents that were out of date closed a cycle
        choice = _acyclic(graph, choice)
    return extraction(graph, choice, 0.0, "heuristic")
