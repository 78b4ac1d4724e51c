"""Both sides of a rewrite on numbers: whether they differ by more than the rule's worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ir import (
    Graph,
    Literal,
    Node,
    Operand,
    TensorType,
    dtype_kind,
    flops_of,
    interpret,
    lookup,
)

from ..worth import EXACT, Array, Bound, Worth, arguments, beyond, limits, tried, unequal

Run = Callable[[Graph, list[Array]], Sequence[Array]]


def difference(graph: Graph, worth: Worth, seed: int = 0, run: Run = interpret) -> str:
    """How the sides differ on the numbers tried; empty if they do not.

    Args:
        graph: the results of the left side, then as many of the right one.
        worth: of the rule.
        seed: other seeds give other numbers.
        run: what evaluates the graph.

    Raises:
        IRError: if an op has no meaning in NumPy.
    """
    for kind, number in tried(worth):
        given = arguments(graph, kind, 1000 * seed + number)
        results = run(graph, given)
        half = len(results) // 2
        exact = worth.floats == EXACT or not any(_float(t) for t in graph.types)
        bounds = [None] * half if exact else _bounds(graph, given, kind)
        for k, (a, b) in enumerate(zip(results[:half], results[half:], strict=True)):
            bound = bounds[k] if _float(graph.type_of(graph.outputs[k])) else None
            wrong = unequal(a, b) if bound is None else beyond(a, b, bound, worth)
            if wrong.any():
                at = tuple(int(n) for n in np.argwhere(wrong)[0])
                where = f"element {at} of result {k}"
                return f"{b[at]} instead of {a[at]} at {where}, on {kind} numbers"
    return ""


def _bounds(graph: Graph, given: list[Array], kind: str) -> list[Bound]:
    """For each result of the left side."""
    half = len(graph.outputs) // 2
    wide = _absolute(replace(graph, outputs=graph.outputs[:half]))
    arrays = [np.abs(x.astype(np.float64)) if _is_float(x) else x for x in given]
    every = list(_graphs(graph))
    types = [limits(dtype) for dtype in {t.dtype for g in every for t in g.types if _float(t)}]
    eps = max(t.eps for t in types)
    least, largest = max(t.least_normal for t in types), min(t.largest for t in types)
    steps = sum(_roundings(g, node) for g in every for node in g.nodes) + 1
    whole = min(map(_finest, every)) / eps if kind == "whole" else 0.0
    return [
        Bound(np.asarray(terms, np.float64), eps, least, largest, steps, whole)
        for terms in interpret(wide, arrays)
    ]


def _finest(graph: Graph) -> float:
    """The least that results of whole numbers can differ by: one, or less if literals are not."""
    literals = [o.value for node in graph.nodes for o in node.inputs if isinstance(o, Literal)]
    numbers = [abs(x) for x in literals if isinstance(x, float)]
    if all(x == round(x) <= 4 for x in numbers if math.isfinite(x)):
        return 1.0
    return 2.0**-12 if all(16 * x == round(16 * x) and x <= 4 for x in numbers) else 0.0


def _graphs(graph: Graph) -> Iterator[Graph]:
    """The graph and its bodies."""
    yield graph
    for node in graph.nodes:
        for body in node.bodies:
            yield from _graphs(body)


def _float(type_: TensorType) -> bool:
    return dtype_kind(type_.dtype) == "float"


def _is_float(x: Array) -> bool:
    return x.dtype.kind not in "biuc"


def _roundings(graph: Graph, node: Node) -> int:
    """Operations for one element of a node's result."""
    types = [graph.type_of(o) for o in node.inputs]
    record = lookup(node.op)
    return math.ceil(flops_of(record, node, types) / max(1, node.outputs[0].size))


def _absolute(graph: Graph) -> Graph:
    """The graph in doubles, with all terms positive."""

    def type_of(t: TensorType) -> TensorType:
        return TensorType(t.shape, "float64") if _float(t) else t

    def operand(o: Operand) -> Operand:
        if not isinstance(o, Literal) or not _float(o.type):
            return o
        return Literal(abs(cast("float", o.value)), type_of(o.type))

    def attr(value: Any) -> Any:
        named = isinstance(value, str) and value.startswith(("float", "bfloat"))
        return "float64" if named and value != "float0" else value

    renamed = {"neg": "abs", "sub": "add"}
    nodes = tuple(
        Node(
            renamed.get(node.op, node.op),
            tuple(map(operand, node.inputs)),
            tuple(map(type_of, node.outputs)),
            tuple((key, attr(value)) for key, value in node.attrs),
            tuple(map(_absolute, node.bodies)),
        )
        for node in graph.nodes
    )
    inputs = tuple(replace(item, type=type_of(item.type)) for item in graph.inputs)
    return Graph(inputs, nodes, tuple(map(operand, graph.outputs)))
