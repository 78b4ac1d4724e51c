"""Bodies of loops: new nodes that read constants only are moved in front of the loop."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from ir import Attrs, Graph, Input, Literal, Node, Operand

from ..program.net import Draft, Mark


def with_bodies(draft: Draft, bodies: Mapping[tuple[int, int], Draft]) -> Draft:
    """The graph with other bodies of some nodes.

    Args:
        draft: the graph around them.
        bodies: the new ones, by (node, number of its body).
    """
    graph = draft.graph
    of: dict[int, list[tuple[int, Draft]]] = {}
    for (at, number), body in sorted(bodies.items(), key=lambda pair: pair[0]):
        of.setdefault(at, []).append((number, body))
    # values from firsts[k] on have shifts[k + 1] new ones before them
    firsts: list[int] = []
    shifts = [0]

    def later(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(
            o if isinstance(o, Literal) else o + shifts[bisect_right(firsts, o)] for o in operands
        )

    nodes: list[Node] = []
    marks: list[Mark] = []
    for at, (node, mark) in enumerate(zip(graph.nodes, draft.marks, strict=True)):
        if firsts:
            node = replace(node, inputs=later(node.inputs))
        count = 0
        for number, body in of.get(at, ()):
            start = graph.first_value[at] + shifts[-1] + count
            node, mark, before = _exchanged(start, node, mark, number, body)
            nodes.extend(n for n, _ in before)
            marks.extend(m for _, m in before)
            count += len(before)
        if count:
            firsts.append(graph.first_value[at])
            shifts.append(shifts[-1] + count)
        nodes.append(node)
        marks.append(mark)
    return Draft(Graph(graph.inputs, tuple(nodes), later(graph.outputs)), tuple(marks))


def _exchanged(
    start: int, node: Node, mark: Mark, number: int, body: Draft
) -> tuple[Node, Mark, list[tuple[Node, Mark]]]:
    """A node with another body, and the nodes to put before it.

    start: the first value that a node before it would make.
    """
    before: list[tuple[Node, Mark]] = []
    added: tuple[Operand, ...] = ()
    if node.op == "scan":
        body, before, added = _hoisted(start, node, body)
    bodies = tuple(body.graph if k == number else b for k, b in enumerate(node.bodies))
    marks = tuple(body.marks if k == number else b for k, b in enumerate(mark.bodies))
    consts = cast("int", node.attr("num_consts")) if node.op == "scan" else 0
    attrs: Attrs = tuple(
        (key, consts + len(added) if key == "num_consts" else value) for key, value in node.attrs
    )
    inputs = (*node.inputs[:consts], *added, *node.inputs[consts:])
    changed = replace(node, inputs=inputs, attrs=attrs, bodies=bodies)
    return changed, Mark(mark.place, marks), before


def _hoisted(
    start: int, node: Node, body: Draft
) -> tuple[Draft, list[tuple[Node, Mark]], tuple[Operand, ...]]:
    """The body without new nodes that only read constants, those nodes, and what they give it.

    start: the first value that a node before the loop would make.
    """
    graph = body.graph
    own = sum(item.role == "constant" for item in graph.inputs)
    consts = cast("int", node.attr("num_consts"))
    # value of the body -> operand outside
    outside: dict[int, Operand] = {own + k: node.inputs[k] for k in range(consts)}
    moved: list[int] = []
    before: list[tuple[Node, Mark]] = []
    for i, (inner, mark) in enumerate(zip(graph.nodes, body.marks, strict=True)):
        ready = all(isinstance(o, Literal) or o in outside for o in inner.inputs)
        if mark.place == () and ready and any(not isinstance(o, Literal) for o in inner.inputs):
            operands = tuple(o if isinstance(o, Literal) else outside[o] for o in inner.inputs)
            before.append((replace(inner, inputs=operands), mark))
            outside[graph.first_value[i]] = start + len(before) - 1
            moved.append(i)
    if not moved:
        return body, [], ()
    kept = [i for i in range(len(graph.nodes)) if i not in moved]
    used = {o for i in kept for o in graph.nodes[i].inputs if not isinstance(o, Literal)}
    used |= {o for o in graph.outputs if not isinstance(o, Literal)}
    given = [graph.first_value[i] for i in moved if graph.first_value[i] in used]
    new = [Input("", graph.types[v], "body") for v in given]
    inputs = [*graph.inputs[: own + consts], *new, *graph.inputs[own + consts :]]
    named = [
        item if item.role == "constant" else replace(item, name=f"in{k - own}")
        for k, item in enumerate(inputs)
    ]
    numbers = {v: v for v in range(own + consts)}
    numbers |= {v: own + consts + k for k, v in enumerate(given)}
    numbers |= {v: v + len(given) for v in range(own + consts, len(graph.inputs))}
    nodes: list[Node] = []
    count = len(inputs)

    def renamed(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(o if isinstance(o, Literal) else numbers[o] for o in operands)

    for i in kept:
        nodes.append(replace(graph.nodes[i], inputs=renamed(graph.nodes[i].inputs)))
        for v in graph.values_of(i):
            numbers[v] = count
            count += 1
    inside = Graph(tuple(named), tuple(nodes), renamed(graph.outputs))
    marks = tuple(body.marks[i] for i in kept)
    operands = tuple(outside[v] for v in given)
    return Draft(inside, marks), before, operands
