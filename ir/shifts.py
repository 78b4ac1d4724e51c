# pyright: basic
"""Shifts in a program: what `jnp.roll` and padded slices, and their gradients, become.

    concatenate(x[n-k:], x[:n-k])                 every element moves by k, around the end
    pad(x, low k, high -k), pad(x[:n-k], low k)   it moves by k, zeros come in
    shift(x, n-k) + shift(x, -k), with zeros      around the end again: the gradient of the first

Each becomes one node, which can be split along its dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jax import lax

from .graph import Graph, Literal, Node, Operand
from .ops.build import ints, pairs, whole_number
from .ops.shift import SHIFT
from .program import Program
from .types import TensorType, dtype_kind

_SHIFTED = ("bool", "int", "float", "complex")


class ShiftPrimitive:
    """Stands for a primitive: shifts an array."""

    name = SHIFT
    multiple_results = False

    def bind(self, x: Any, *, axis: int, by: int, wraps: bool) -> Any:
        """The shifted array, in primitives of JAX."""
        size = x.shape[axis]
        if wraps:
            last = lax.slice_in_dim(x, (-by) % size, size, axis=axis)
            return lax.concatenate([last, lax.slice_in_dim(x, 0, (-by) % size, axis=axis)], axis)
        config = [(0, 0, 0)] * x.ndim
        config[axis] = (by, -by, 0)
        return lax.pad(x, x.dtype.type(0), config)


class _Shift(NamedTuple):
    x: Operand
    axis: int
    by: int
    wraps: bool


def with_shifts(program: Program) -> Program:
    """The program with its shifts as nodes; values keep their numbers."""
    graph = program.graph
    if not any(node.op in _READ for node in graph.nodes):
        return program
    nodes, bindings, found = list(graph.nodes), list(program.bindings), dict[int, _Shift]()
    for i, node in enumerate(graph.nodes):
        read = _READ.get(node.op)
        shift = read(_Makers(graph, nodes, found), node) if read else None
        if shift is None or dtype_kind(node.outputs[0].dtype) not in _SHIFTED:
            continue
        (value,) = graph.values_of(i)
        found[value] = shift
        params = {"axis": shift.axis, "by": shift.by, "wraps": shift.wraps}
        nodes[i] = Node(
            SHIFT, (shift.x,), node.outputs, tuple(sorted(params.items())), (), node.source
        )
        bindings[i] = replace(bindings[i], primitive=ShiftPrimitive(), params=params)
    if not found:
        return program
    return replace(
        program, graph=Graph(graph.inputs, tuple(nodes), graph.outputs), bindings=tuple(bindings)
    )


class _Makers(NamedTuple):
    """What is known of the values of a graph.

    nodes: of the graph, with the shifts found so far.
    shifts: these, by the value that they make.
    """

    graph: Graph
    nodes: Sequence[Node]
    shifts: dict[int, _Shift]

    def slice_of(self, value: Operand) -> tuple[Operand, int, int, int] | None:
        """Operand, dimension, start and limit of a slice along one dimension."""
        if not isinstance(value, int) or value not in self.graph.maker:
            return None
        number = self.graph.maker[value]
        node = self.nodes[number]
        if node.op == "split":
            sizes, axis = ints(node.attr("sizes")), whole_number(node.attr("axis"))
            k = value - self.graph.first_value[number]
            return node.inputs[0], axis, sum(sizes[:k]), sum(sizes[: k + 1])
        if node.op != "slice" or node.attr("strides") not in (None, (1,) * node.outputs[0].rank):
            return None
        starts, limits = ints(node.attr("start_indices")), ints(node.attr("limit_indices"))
        shape = self.type_of(node.inputs[0]).shape
        cut = [d for d, n in enumerate(shape) if (starts[d], limits[d]) != (0, n)]
        if len(cut) != 1:
            return None
        (axis,) = cut
        return node.inputs[0], axis, starts[axis], limits[axis]

    def is_zero(self, value: Operand) -> bool:
        """Whether a value is a zero that the program is written with."""
        if isinstance(value, int) and value in self.graph.maker:
            node = self.nodes[self.graph.maker[value]]
            value = node.inputs[0] if node.op == "convert_element_type" else value
        return isinstance(value, Literal) and repr(value.value) in _ZEROS

    def type_of(self, value: Operand) -> TensorType:
        return self.graph.type_of(value)


def _of_concatenate(known: _Makers, node: Node) -> _Shift | None:
    if len(node.inputs) != 2:
        return None
    first, second = (known.slice_of(value) for value in node.inputs)
    if first is None or second is None:
        return None
    size = known.type_of(first[0]).shape[first[1]]
    same = first[:2] == second[:2] and first[1] == node.attr("dimension")
    if not same or (second[2], first[2], first[3]) != (0, second[3], size):
        return None
    return _Shift(first[0], first[1], _nearest(size - first[2], size), True)


def _of_pad(known: _Makers, node: Node) -> _Shift | None:
    x, fill = node.inputs
    config = pairs(node.attr("padding_config"))
    padded = [d for d, edges in enumerate(config) if edges != (0, 0, 0)]
    if len(padded) != 1 or not known.is_zero(fill):
        return None
    (axis,) = padded
    low, high, inner = config[axis]
    start, limit, size = 0, known.type_of(x).shape[axis], known.type_of(x).shape[axis]
    if (cut := known.slice_of(x)) is not None and cut[1] == axis:
        x, _, start, limit = cut
        size = known.type_of(x).shape[axis]
    by = low - start
    room = size == node.outputs[0].shape[axis] and inner == 0 and 0 < abs(by) < size
    # what is left of x is all that a shift keeps of it
    kept = (start + max(0, -low), limit - max(0, -high))
    if not room or kept != ((0, size - by) if by > 0 else (-by, size)):
        return None
    return _Shift(x, axis, by, False)


def _of_sum(known: _Makers, node: Node) -> _Shift | None:
    parts = [known.shifts.get(v) for v in node.inputs if isinstance(v, int)]
    if len(parts) != 2 or parts[0] is None or parts[1] is None:
        return None
    first, second = parts[0], parts[1]
    size = node.outputs[0].shape[first.axis]
    if first[:2] != second[:2] or first.wraps or second.wraps:
        return None
    if abs(first.by - second.by) != size:
        return None
    return _Shift(first.x, first.axis, _nearest(first.by, size), True)


def _nearest(by: int, size: int) -> int:
    """The same shift around the end, in the direction of fewer places."""
    by %= size
    return by - size if by > size - by else by


_ZEROS = ("0", "0.0", "False", "0j")
_READ = {"add": _of_sum, "add_any": _of_sum, "concatenate": _of_concatenate, "pad": _of_pad}
