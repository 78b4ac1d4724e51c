"""Evaluates a graph with NumPy: the reference semantics, slow and without JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from .errors import IRError, doing
from .graph import Graph, Literal, Node, Operand
from .ops.numeric import numpy_dtype
from .regions import REGIONS, Scan, While, captured, iterations
from .table import lookup
from .types import TensorType

Array = np.ndarray[Any, Any]
Constants = Mapping[str, Any]  # by content digest


def interpret(
    graph: Graph, arguments: Sequence[Any], constants: Constants | None = None
) -> tuple[Array, ...]:
    """Evaluates a graph.

    Args:
        graph: the graph to evaluate.
        arguments: one array for each input of the graph, captured constants included.
        constants: arrays captured inside, by their content digest.

    Returns:
        One array per output, of the type that the graph gives it.

    Raises:
        IRError: if NumPy cannot evaluate an op, or shapes differ from the graph's.
    """
    known = constants or {}
    missing = without_meaning(graph, known)
    if missing:
        raise IRError(
            f"no NumPy meaning for {', '.join(missing)}; run the function with JAX instead"
        )
    with np.errstate(all="ignore"):
        return _run(graph, arguments, known)


def without_meaning(graph: Graph, constants: Constants | None = None) -> tuple[str, ...]:
    """Names of the ops that NumPy cannot evaluate, including those in bodies."""
    known = constants or {}
    found: set[str] = set()
    for node in graph.nodes:
        if node.op in REGIONS:
            for body in node.bodies:
                found.update(without_meaning(body, known))
        elif node.op == "constant":
            found.update(() if node.attr("content") in known else ("constant",))
        elif lookup(node.op).meaning is None or _is_custom_scatter(node):
            found.add(node.op)
    return tuple(sorted(found))


def _is_custom_scatter(node: Node) -> bool:
    """Whether a scatter applies a function of the user's instead of setting elements."""
    return node.op == "scatter" and any(body.nodes for body in node.bodies)


def apply(node: Node, operands: Sequence[Any]) -> tuple[Array, ...]:
    """Evaluates one node without bodies on arrays.

    Raises:
        IRError: if NumPy cannot evaluate the op, or a result's shape differs from its type.
    """
    meaning = lookup(node.op).meaning
    if meaning is None or _is_custom_scatter(node):
        raise IRError(f"no NumPy meaning for {node.op}; run the function with JAX instead")
    with np.errstate(all="ignore"):
        value = meaning(dict(node.attrs), *operands)
    results = cast(tuple[Any, ...], value if isinstance(value, tuple) else (value,))
    return tuple(_typed(x, type_) for x, type_ in zip(results, node.outputs, strict=True))


def _run(graph: Graph, arguments: Sequence[Any], constants: Constants) -> tuple[Array, ...]:
    if len(arguments) != len(graph.inputs):
        raise IRError(f"the graph has {len(graph.inputs)} inputs, got {len(arguments)} arrays")
    values = [_typed(x, item.type) for x, item in zip(arguments, graph.inputs, strict=True)]
    for i, node in enumerate(graph.nodes):
        with doing(f"interpreting node {i} ({node.op}) {node.source}".rstrip()):
            values.extend(_node(node, [_read(o, values) for o in node.inputs], constants))
    return tuple(_read(operand, values) for operand in graph.outputs)


def _read(operand: Operand, values: Sequence[Array]) -> Array:
    if isinstance(operand, Literal):
        return np.asarray(operand.value).astype(numpy_dtype(operand.type.dtype))
    return values[operand]


def _typed(value: Any, type_: TensorType) -> Array:
    array = np.asarray(value)
    if array.shape != type_.shape:
        raise IRError(f"expected a value of type {type_}, got the shape {array.shape}")
    return array.astype(numpy_dtype(type_.dtype))


def _node(node: Node, operands: list[Array], constants: Constants) -> tuple[Array, ...]:
    if node.op == "constant":
        return (_typed(constants[str(node.attr("content"))], node.outputs[0]),)
    if node.op == "remat":
        return _body(node.bodies[0], operands, constants)
    if node.op == "cond":
        last = len(node.bodies) - 1
        return _body(node.bodies[min(max(int(operands[0]), 0), last)], operands[1:], constants)
    if node.op == "while":
        return _while(node, operands, constants)
    if node.op == "scan":
        return _scan(node, operands, constants)
    return apply(node, operands)


def _body(body: Graph, arguments: Sequence[Array], constants: Constants) -> tuple[Array, ...]:
    heads = [constants[item.digest] for item in body.inputs[: captured(body)]]
    return _run(body, [*heads, *arguments], constants)


def _while(node: Node, operands: list[Array], constants: Constants) -> tuple[Array, ...]:
    wiring = While.of(node)
    test, step = node.bodies[wiring.test], node.bodies[wiring.step]
    for_test, for_step, carry = wiring.operands(operands)
    while bool(_body(test, [*for_test, *carry], constants)[0]):
        carry = _body(step, [*for_step, *carry], constants)
    return tuple(carry)


def _scan(node: Node, operands: list[Array], constants: Constants) -> tuple[Array, ...]:
    wiring, body = Scan.of(node), node.bodies[0]
    consts, carry, xs = wiring.operands(operands)
    ys = [np.empty(t.shape, numpy_dtype(t.dtype)) for t in wiring.results(node.outputs)[1]]
    for i in iterations(node):
        results = _body(body, [*consts, *carry, *(x[i] for x in xs)], constants)
        carry, parts = wiring.results(results)
        for y, part in zip(ys, parts, strict=True):
            y[i] = part
    return (*carry, *ys)
