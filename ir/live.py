"""Which inputs the results of a graph depend on, through the bodies of its regions."""

from __future__ import annotations

from collections.abc import Set

from .graph import Graph, Node


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
    count = len(node.inputs)
    if node.has_attr("effect"):
        return set(range(count))
    match node.op:
        case "scan":
            return _of_scan(node, used)
        case "cond":
            return {0}.union(*(_shifted(body, used, count - 1, 1) for body in node.bodies))
        case "remat":
            return _shifted(node.bodies[0], used, count, 0)
        case _:
            return set(range(count))


def _shifted(body: Graph, used: Set[int], count: int, by: int) -> set[int]:
    """Operands of a body that takes the last `count` of its inputs from a node."""
    heads = len(body.inputs) - count
    return {v - heads + by for v in _live(body, used) if v >= heads}


def _of_scan(node: Node, used: Set[int]) -> set[int]:
    """Carries that are wanted want others in turn."""
    consts, carries = node.attr("num_consts"), node.attr("num_carry")
    assert isinstance(consts, int)
    assert isinstance(carries, int)
    while True:
        read = _shifted(node.bodies[0], used, len(node.inputs), 0)
        more = {v - consts for v in read if consts <= v < consts + carries} | set(used)
        if more == used:
            return read | {consts + k for k in used if k < carries}
        used = more
