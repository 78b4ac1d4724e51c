"""Inputs on which the results of a graph depend, through the bodies of its regions."""

from __future__ import annotations

from collections.abc import Set

from .graph import Graph, Node
from .regions import Scan, captured, entering


def live_inputs(graph: Graph) -> frozenset[int]:
    """Numbers of the inputs that some result, or an effect, depends on."""
    return _live(graph, frozenset(range(len(graph.outputs))))


def _live(graph: Graph, wanted: Set[int]) -> frozenset[int]:
    """Inputs that the results at some positions, or an effect, depend on."""
    live = {graph.outputs[k] for k in wanted}
    for i in reversed(range(len(graph.nodes))):
        node, values = graph.nodes[i], graph.values_of(i)
        used = frozenset(k for k, v in enumerate(values) if v in live)
        if used or node.has_attr("effect"):
            live.update(node.inputs[k] for k in _read(node, used))
    return frozenset(v for v in range(len(graph.inputs)) if v in live)


def _read(node: Node, used: frozenset[int]) -> Set[int]:
    """Positions of the operands that some results of a node depend on."""
    everything = set(range(len(node.inputs)))
    if node.has_attr("effect"):
        return everything
    match node.op:
        case "scan":
            return _of_scan(node, used)
        case "cond":
            return {0}.union(*(_inside(node, b, used) for b in range(len(node.bodies))))
        case "remat":
            return _inside(node, 0, used)
        case _:
            return everything


def _inside(node: Node, b: int, used: Set[int]) -> set[int]:
    """Positions of the operands that some results of a body depend on."""
    body, positions = node.bodies[b], entering(node, b)
    heads = captured(body)
    return {positions[v - heads] for v in _live(body, used) if v >= heads}


def _of_scan(node: Node, used: Set[int]) -> set[int]:
    """Carries that the needed carries depend on are needed as well."""
    _, carries, _ = Scan.of(node).operands(range(len(node.inputs)))
    while True:
        read = _inside(node, 0, used)
        more = {carry for carry, k in enumerate(carries) if k in read} | set(used)
        if more == used:
            return read | {k for carry, k in enumerate(carries) if carry in used}
        used = more
