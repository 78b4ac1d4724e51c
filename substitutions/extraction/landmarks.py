"""Sets of nodes of which every extraction has one, and the bound that they give.

An extraction is a plan without deletions: a node is an action that makes its class from its
children. The cheapest such plan is bounded by the critical path

    h(c) = min over nodes n of c of  cost(n) + max over children d of h(d)

and far better by landmarks: U holds a root and, for every node of U that is free by now, its
child of largest h. Some node that needs nothing of U must be chosen; all of these nodes become
cheaper by the least of their costs, which the bound gains, and so on until the root is free.

Source: Helmert and Domshlak, Landmarks, Critical Paths and Abstractions: What's the Difference
Anyway? ICAPS 2009 (the landmark cut).
"""

from __future__ import annotations

import heapq
import math
import time

from .egraph import EGraph
from .founded import Cut
from .greedy import parents

MOST_LANDMARKS = 5000


def landmarks(
    graph: EGraph, deadline: float = math.inf, most: int = MOST_LANDMARKS
) -> tuple[float, list[Cut]]:
    """The bound, and cuts that prove it; a class of the roots is needed for each.

    Args:
        graph: where the roots can be built.
        deadline: of `time.monotonic`, at which the search ends.
        most: cuts.
    """
    cost = [node.cost for node in graph.nodes]
    members, uses = graph.members(), parents(graph)
    bound, cuts = 0.0, list[Cut]()
    while len(cuts) < most and time.monotonic() < deadline:
        far = critical_paths(graph, cost, uses)
        root = max(graph.roots, key=lambda c: far[c])
        if far[root] <= 0.0 or math.isinf(far[root]):
            break
        nodes = _around(graph, root, cost, far, members)
        least = min(cost[i] for i in nodes)
        for i in nodes:
            cost[i] -= least
        bound += least
        cuts.append(Cut(root, nodes))
    return bound, cuts


def critical_paths(graph: EGraph, cost: list[float], uses: list[list[int]]) -> list[float]:
    """Critical path of every class; infinite where nothing builds it."""
    found = [math.inf] * graph.classes
    waits = [len(node.children) for node in graph.nodes]
    work = [(cost[i], node.owner) for i, node in enumerate(graph.nodes) if not node.children]
    heapq.heapify(work)
    while work:
        h, c = heapq.heappop(work)
        if found[c] < math.inf:
            continue
        found[c] = h
        for i in uses[c]:
            waits[i] -= 1
            owner = graph.nodes[i].owner
            if not waits[i] and found[owner] == math.inf:
                heapq.heappush(work, (h + cost[i], owner))
    return found


def _around(
    graph: EGraph, root: int, cost: list[float], far: list[float], members: list[list[int]]
) -> tuple[int, ...]:
    inside, work = {root}, [root]
    while work:
        for i in members[work.pop()]:
            children = graph.nodes[i].children
            if cost[i] > 0.0 or not children or any(d in inside for d in children):
                continue
            farthest = max(children, key=lambda d: (far[d], -d))
            inside.add(farthest)
            work.append(farthest)
    return tuple(
        i
        for c in sorted(inside)
        for i in members[c]
        if not any(d in inside for d in graph.nodes[i].children)
    )
