"""The oracle of tests: every acyclic choice of a small e-graph."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .egraph import NOTHING, EGraph, Extraction, extraction, needed, total


def brute_force(graph: EGraph) -> Extraction:
    """The best of all choices; time grows with the product of the sizes of the classes."""
    best, found = math.inf, dict[int, int]()
    for choice in _choices(graph, {}, list(graph.roots)):
        chosen = needed(graph, choice)
        if chosen is not None and (cost := total(graph, chosen)) < best:
            best, found = cost, choice
    return extraction(graph, found, best, "optimal") if best < math.inf else NOTHING


def _choices(graph: EGraph, choice: dict[int, int], open_: list[int]) -> Iterator[dict[int, int]]:
    """Choices for all classes that are needed, cyclic ones among them."""
    todo = [c for c in open_ if c not in choice]
    if not todo:
        yield dict(choice)
        return
    c = todo[0]
    for i, node in enumerate(graph.nodes):
        if node.owner == c:
            yield from _choices(graph, {**choice, c: i}, [*todo[1:], *node.children])
