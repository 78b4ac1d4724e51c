"""Which operations are effects: callbacks and prints."""

from __future__ import annotations

from ..graph import Graph, Node
from ..table import lookup


def is_effect(node: Node) -> bool:
    """Whether the op is itself an effect, not a region around one."""
    return lookup(node.op).family == "effect"


def has_effects(graph: Graph) -> bool:
    """Whether some op of the graph, or of a body of it, is an effect."""
    return any(is_effect(node) or any(map(has_effects, node.bodies)) for node in graph.nodes)
