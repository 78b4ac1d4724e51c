"""Both sides of a rewrite on numbers: whether they differ by more than the rule's worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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

from ..worth import BOUNDED, EXACT, REASSOCIATED, UNBOUNDED, Worth
from .values import Array, arguments, limits

Run = Callable[[Graph, list[Array]], Sequence[Array]]
# worth in floats -> (numbers, seed) that both sides are tried on
_TRIED = {
    EXACT: (("whole", 1), ("wild", 2), ("wild", 3)),
    REASSOCIATED: (("whole", 1), ("finite", 2), ("holes", 3)),
    BOUNDED: (("whole", 1), ("finite", 2), ("finite", 3)),
    UNBOUNDED: (("whole", 1),),
}


@dataclass(frozen=True, slots=True)
class _Bound:
    """What the results of one graph may differ by.

    terms: of each result, the sum of the absolute values of all that is added up.
    eps: of the shortest type that something is rounded to.
    steps: roundings on both sides.
    whole: results without any rounding: those of small whole numbers that are below this.
    """

    terms: tuple[Array, ...]
    eps: float
    least: float
    largest: float
    steps: int
    whole: float


def difference(graph: Graph, worth: Worth, seed: int = 0, run: Run = interpret) -> str:
    """How the sides differ; empty if they do not, on what was tried.

    Args:
        graph: the results of the left side, then as many of the right one.
        worth: of the rule.
        seed: other seeds give other numbers.
        run: what evaluates the graph.

    Raises:
        IRError: if an op has no meaning in NumPy.
    """
    for kind, number in _TRIED[worth.floats]:
        given = arguments(graph, kind, 1000 * seed + number)
        results = run(graph, given)
        half = len(results) // 2
        bound = None if worth.floats == EXACT else _bound(graph, given, kind)
        for k, (a, b) in enumerate(zip(results[:half], results[half:], strict=True)):
            dtype = graph.type_of(graph.outputs[k]).dtype
            wrong = _unequal(a, b) if bound is None else _beyond(a, b, k, bound, worth, dtype)
            if wrong.any():
                at = tuple(int(n) for n in np.argwhere(wrong)[0])
                where = f"element {at} of result {k}"
                return f"{b[at]} instead of {a[at]} at {where}, on {kind} numbers"
    return ""


def _unequal(a: Array, b: Array) -> Array:
    """Where two arrays differ in any bit; all NaNs are one value."""
    if a.dtype.kind in "biu" or a.dtype.itemsize > 8:
        return a != b
    if a.dtype.kind == "c":
        return _unequal(a.real, b.real) | _unequal(a.imag, b.imag)
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) & (np.signbit(x) == np.signbit(y))
    return ~(same | (np.isnan(x) & np.isnan(y)))


def _beyond(a: Array, b: Array, k: int, bound: _Bound, worth: Worth, dtype: str) -> Array:
    """Where two arrays differ by more than a bound."""
    if dtype_kind(dtype) != "float":
        return _unequal(a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    terms = bound.terms[k]
    with np.errstate(all="ignore"):
        allowed = bound.steps * (bound.eps * terms + bound.least)
        allowed = np.where(terms < bound.whole, 0.0, allowed)
        far = np.abs(x - y) > allowed
        near = np.isfinite(terms) & (terms < bound.largest / 4)
        odd = np.zeros(x.shape, bool)
        if worth.floats == REASSOCIATED:
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            odd = ~np.isfinite(terms) & ~same
        return np.where(near, far | ~np.isfinite(x - y), odd)


def _bound(graph: Graph, given: list[Array], kind: str) -> _Bound:
    half = len(graph.outputs) // 2
    wide = _absolute(replace(graph, outputs=graph.outputs[:half]))
    arrays = [np.abs(x.astype(np.float64)) if _is_float(x) else x for x in given]
    terms = tuple(np.asarray(x, np.float64) for x in interpret(wide, arrays))
    every = list(_graphs(graph))
    types = [limits(dtype) for dtype in {t.dtype for g in every for t in g.types if _float(t)}]
    eps = max((t.eps for t in types), default=0.0)
    return _Bound(
        terms,
        eps,
        max((t.least_normal for t in types), default=0.0),
        min((t.largest for t in types), default=math.inf),
        sum(_roundings(g, node) for g in every for node in g.nodes) + 1,
        min(map(_finest, every)) / eps if kind == "whole" and eps else 0.0,
    )


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
