# pyright: basic
"""Choices that give the least work for what they keep, at every price of memory.

At a price of a byte, the best choice is a minimum cut: each node of the forward pass is on the side
of the forward pass, or is computed again on the side of the backward pass, and what crosses from
one to the other is kept,

    minimise   sum of t_i over nodes computed again  +  price * sum of bytes over values kept

so that everything the backward pass reads is kept, or computed again out of what is kept. A node is
computed again once at most. The prices at which the choice changes are found from both ends. Source
of the cut: Zheng et al., Min-cut rematerialization in AOTAutograd (PyTorch), 2022; of the prices:
Eisner and Severance, 1976.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lazy_loader

from ir.analysis import Place

from .kinds import cuts, narrow, root_stride
from .saved import Key, Layer, Made

if TYPE_CHECKING:
    import networkx as nx
else:
    nx = lazy_loader.load("networkx")  # only needed where memory is short

SecondsOf = Callable[[Place], float]
NEARLY = 1e-6  # share of all work that a change of the choice is worth


@dataclass(frozen=True, slots=True)
class Choice:
    """Values that are computed again.

    again_s: seconds of computing them again, each split evenly over all devices.
    kept_bytes: bytes of what is kept for the backward pass, on one device.
    """

    values: frozenset[Key]
    again_s: float
    kept_bytes: float


def frontier(layers: Sequence[Layer], seconds: SecondsOf, most: int) -> list[Choice]:
    """Choices from the least work to the least memory.

    Args:
        layers: bodies with a forward pass.
        seconds: seconds of the node at a place, over the whole step.
        most: number of choices, about.
    """
    found: dict[frozenset[Key], Choice] = {}
    for stops in _stops(layers):
        for choice in _swept(layers, seconds, stops, most):
            found.setdefault(choice.values, choice)
    ordered = sorted(found.values(), key=lambda c: (c.again_s, c.kept_bytes))
    best: list[Choice] = []
    for choice in ordered:
        if not best or choice.kept_bytes < best[-1].kept_bytes:
            best.append(choice)
    return best


def _stops(layers: Sequence[Layer]) -> list[frozenset[Key]]:
    """Values that are always kept, so that not all of a long forward pass is made again at once."""
    flat = [layer for layer in layers if not layer.loop]
    if len(flat) < len(layers) or all(len(narrow(layer)) < 2 for layer in flat):
        return [frozenset()]
    found: dict[frozenset[Key], None] = {}
    for coarse in (False, True):
        strides = [(layer, root_stride(layer) if coarse else 1) for layer in flat]
        keys = [layer.keys(cuts(layer, stride)) for layer, stride in strides]
        found[frozenset().union(*keys)] = None
    return list(found)


def _swept(
    layers: Sequence[Layer], seconds: SecondsOf, stops: Collection[Key], most: int
) -> list[Choice]:
    each = {(y.place, n.index): seconds((*y.place, n.index)) for y in layers for n in y.nodes}
    work, size = sum(each.values()), sum(
        y.nbytes(n, v) for y in layers for n in y.nodes for v in n.read
    )  # fmt: skip
    if not size or not work:
        return []

    def at(price: float) -> Choice:
        return _joined([_cut(layer, each, stops, price) for layer in layers])

    first, last = at(NEARLY * work / size), at(work / size / NEARLY)
    found = [first, last]
    todo = [(first, last)]
    while todo and len(found) < most:
        few, many = todo.pop(0)
        if few.kept_bytes <= many.kept_bytes or few.again_s >= many.again_s:
            continue
        middle = at((many.again_s - few.again_s) / (few.kept_bytes - many.kept_bytes))
        if middle.values not in (few.values, many.values):
            found.append(middle)
            todo += [(few, middle), (middle, many)]
    return found


def _joined(choices: Sequence[Choice]) -> Choice:
    values = frozenset[Key]().union(*(c.values for c in choices))
    return Choice(values, sum(c.again_s for c in choices), sum(c.kept_bytes for c in choices))


def _cut(
    layer: Layer, seconds: dict[tuple[Place, int], float], stops: Collection[Key], price: float
) -> Choice:
    """The best choice of a body at a price [s/byte]."""
    graph: nx.DiGraph[object] = nx.DiGraph()
    graph.add_nodes_from(("forward", "backward"))

    def again_s(node: Made) -> float:
        return seconds[layer.place, node.index]

    made = {v: node for node in layer.nodes for v in node.outs}
    for node in layer.nodes:
        fixed = not node.again or any((layer.place, v) in stops for v in node.outs)
        if fixed:
            graph.add_edge("forward", node.index)
        else:
            graph.add_edge("forward", node.index, capacity=again_s(node))
        for v in node.outs:
            kept = price * layer.nbytes(node, v)
            graph.add_edge(node.index, ("value", v), capacity=kept)
            if v in node.read:
                graph.add_edge(("value", v), "backward")
        for v in node.reads:
            if v in made:
                graph.add_edge(("value", v), node.index)
    side = _forward_side(graph)
    again = [node for node in layer.nodes if node.index not in side]
    kept = [
        layer.nbytes(node, v)
        for node in layer.nodes if node.index in side
        for v in node.outs if ("value", v) not in side
    ]  # fmt: skip
    return Choice(layer.keys(again), sum(map(again_s, again)), sum(kept))


def _forward_side(graph: nx.DiGraph[object]) -> Collection[object]:
    """The nodes of a minimum cut that are on the side of the forward pass."""
    return nx.minimum_cut(graph, "forward", "backward")[1][0]
