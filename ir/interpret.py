"""The meaning of a graph, with NumPy: slow, small, and without JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from .errors import IRError, doing
from .graph import Graph, Literal, Node, Operand
from .ops.build import whole_number
from .ops.numeric import numpy_dtype
from .table import lookup
from .types import TensorType

Array = np.ndarray[Any, Any]
Constants = Mapping[str, Any]  # by content digest

_CONTROL = ("cond", "remat", "scan", "while")


def interpret(
    graph: Graph, arguments: Sequence[Any], constants: Constants | None = None
) -> tuple[Array, ...]:
    """Evaluates a graph.

    Args:
        graph: what to evaluate.
        arguments: one array for each input of the graph, captured constants included.
        constants: arrays captured inside, by their content digest.

    Returns:
        One array per output, of the type that the graph gives it.

    Raises:
        IRError: if an op has no meaning in NumPy, or shapes are not those of the graph.
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
    """Names of the ops that NumPy cannot evaluate, those in bodies included."""
    known = constants or {}
    found: set[str] = set()
    for node in graph.nodes:
        if node.op in _CONTROL:
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
        IRError: if the op has no meaning in NumPy, or a result has another shape than its type.
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
        return _body(node, "jaxpr", operands, constants)
    if node.op == "cond":
        last = len(node.bodies) - 1
        return _run_body(node.bodies[min(max(int(operands[0]), 0), last)], operands[1:], constants)
    if node.op == "while":
        return _while(node, operands, constants)
    if node.op == "scan":
        return _scan(node, operands, constants)
    return apply(node, operands)


def _body(
    node: Node, name: str, arguments: Sequence[Array], constants: Constants
) -> tuple[Array, ...]:
    """Runs the body that an attribute names, as in `cond_jaxpr = "body 1"`."""
    number = int(str(node.attr(name)).removeprefix("body "))
    return _run_body(node.bodies[number], arguments, constants)


def _run_body(body: Graph, arguments: Sequence[Array], constants: Constants) -> tuple[Array, ...]:
    captured = [constants[i.digest] for i in body.inputs if i.role == "constant"]
    return _run(body, [*captured, *arguments], constants)


def _while(node: Node, operands: list[Array], constants: Constants) -> tuple[Array, ...]:
    tests, steps = whole_number(node.attr("cond_nconsts")), whole_number(node.attr("body_nconsts"))
    for_test, for_step = operands[:tests], operands[tests : tests + steps]
    carry = tuple(operands[tests + steps :])
    while bool(_body(node, "cond_jaxpr", [*for_test, *carry], constants)[0]):
        carry = _body(node, "body_jaxpr", [*for_step, *carry], constants)
    return carry


def _scan(node: Node, operands: list[Array], constants: Constants) -> tuple[Array, ...]:
    fixed, carried = whole_number(node.attr("num_consts")), whole_number(node.attr("num_carry"))
    length = whole_number(node.attr("length"))
    outer, carry = operands[:fixed], tuple(operands[fixed : fixed + carried])
    stacked = operands[fixed + carried :]
    ys = [np.empty(t.shape, numpy_dtype(t.dtype)) for t in node.outputs[carried:]]
    for i in reversed(range(length)) if node.attr("reverse") else range(length):
        results = _body(node, "jaxpr", [*outer, *carry, *(x[i] for x in stacked)], constants)
        carry = results[:carried]
        for y, part in zip(ys, results[carried:], strict=True):
            y[i] = part
    return (*carry, *ys)
