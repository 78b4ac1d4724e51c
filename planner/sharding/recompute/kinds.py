"""Choices with a name: what hand-written programs compute again."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ir import GROUPED, Node

from .passes import HEAVY
from .saved import Key, Layer, Made

KINDS = ("none", "selective", "full")


def chosen_by_kind(layers: Sequence[Layer], kind: str) -> frozenset[Key]:
    """The values that are computed again.

    none: nothing.
    selective: all but products with weights and convolutions, so also products between activations
        (attention) and light ops. Source: Korthikanti et al., 2022, section 5.
    full: all but the inputs of each layer. Where layers are no loop, all but the values at which
        the forward pass is cut into about the square root of the number of its narrow places.
        Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 4.

    Args:
        layers: bodies with a forward pass; where loops over layers are among them, only these
            are computed again.
        kind: one of `KINDS`.
    """
    found: set[Key] = set()
    if kind == "none":
        return frozenset()
    for layer in _inside(layers):
        if kind == "selective":
            heavy = _made_of_products(layer)
            found |= layer.keys([node for node in layer.nodes if not _is_kept(node, heavy)])
            continue
        kept = () if layer.loop else cuts(layer, root_stride(layer))
        found |= layer.keys([node for node in layer.nodes if node not in kept])
    return frozenset(found)


def _inside(layers: Sequence[Layer]) -> list[Layer]:
    loops = [layer for layer in layers if layer.loop]
    return loops or list(layers)


def _is_kept(node: Made, heavy: Collection[int]) -> bool:
    """Whether a node is a convolution or a product with weights, which those of experts batch."""
    if node.node.op == "conv_general_dilated":
        return True
    if node.node.op not in ("dot_general", GROUPED):
        return False
    return not _has_batch(node.node) or any(v not in heavy for v in node.reads)


def _has_batch(node: Node) -> bool:
    numbers = node.attr("dimension_numbers") if node.op == "dot_general" else None
    batch = numbers[1] if isinstance(numbers, tuple) else None
    return not isinstance(batch, tuple) or bool(batch[0])


def _made_of_products(layer: Layer) -> set[int]:
    """The values that depend on a product of the layer."""
    heavy: set[int] = set()
    for node in layer.nodes:
        if node.node.op in HEAVY or not heavy.isdisjoint(node.reads):
            heavy.update(node.outs)
    return heavy


def root_stride(layer: Layer) -> int:
    """How many narrow places there are between the cuts of a forward pass."""
    return max(1, round(math.sqrt(len(narrow(layer)))))


def cuts(layer: Layer, stride: int) -> list[Made]:
    """The nodes at every so many of the narrow places of a forward pass."""
    return narrow(layer)[stride - 1 :: stride]


def narrow(layer: Layer) -> list[Made]:
    """Nodes whose single result is all that the rest of a forward pass reads of what came before.

    What is made of the inputs without products, such as casts of weights and masks, does not count.
    Of several narrow places without a product between them, the one of the fewest bytes is taken.
    """
    heavy = _made_of_products(layer)
    last: dict[int, int] = {}
    for i, node in enumerate(layer.nodes):
        last.update(dict.fromkeys((v for v in node.reads if v in heavy), i))
    live: set[int] = set()
    runs: list[list[tuple[float, int, Made]]] = [[]]
    for i, node in enumerate(layer.nodes):
        if node.node.op in HEAVY and runs[-1]:
            runs.append([])
        live.update(v for v in node.outs if last.get(v, -1) > i)
        live = {v for v in live if last[v] > i}
        if len(live) == 1 and len(node.outs) == 1 and node.outs[0] in live:
            runs[-1].append((layer.nbytes(node, node.outs[0]), i, node))
    return [min(run, key=lambda one: one[:2])[2] for run in runs if run]
