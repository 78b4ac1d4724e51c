# pyright: basic
"""Shifts in a program: what `jnp.roll`, padded slices and slices of what is padded become.

What slices, splits, pads and concatenations along one dimension make is a row of pieces, each of
some value or of zeros. Where it is as long as the value, it is a shift if it is one of

    x[n-k:n], x[0:n-k]            every element moves by k, around the end
    zeros(k), x[0:n-k]            it moves by k, zeros come in
    x[k:n], zeros(k)              it moves back by k

and so is the gradient of the first, shift(x, n-k) + shift(x, -k) with zeros. Each becomes one node,
which can be split along its dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def bind(self, x: Any, *, axis: int, by: int, wraps: bool, ring: int | None = None) -> Any:
        """The shifted array, in primitives of JAX."""
        size = ring or x.shape[axis]
        if wraps:
            rows = (((-by) % size, size), (0, (-by) % size), (size, x.shape[axis]))
            parts = [lax.slice_in_dim(x, a, b, axis=axis) for a, b in rows if a < b]
            return lax.concatenate(parts, axis)
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
        shift = read(_Makers(graph, nodes, found), graph.values_of(i)[0]) if read else None
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


class _Piece(NamedTuple):
    """Elements of a value along a dimension; zeros if there is no value."""

    source: Operand | None
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class _Makers(NamedTuple):
    """What is known of the values of a graph.

    nodes: of the graph, with the shifts found so far.
    shifts: these, by the value that they make.
    """

    graph: Graph
    nodes: Sequence[Node]
    shifts: dict[int, _Shift]

    def pieces(self, value: Operand, axis: int, depth: int = 0) -> tuple[_Piece, ...]:
        """What a value is made of along a dimension, in order; itself if nothing is known."""
        whole = (_Piece(value, 0, self.type_of(value).shape[axis]),)
        if self.is_zero(value):
            return (_Piece(None, *whole[0][1:]),)
        if not isinstance(value, int) or value not in self.graph.maker or depth == _DEEPEST:
            return whole
        number = self.graph.maker[value]
        node, output = self.nodes[number], value - self.graph.first_value[number]
        if node.op == "concatenate":
            if node.attr("dimension") != axis or len(node.inputs) > _MOST:
                return whole
            return _joined(p for x in node.inputs for p in self.pieces(x, axis, depth + 1))
        edges = _edges(node, output, self.type_of(node.inputs[0]).shape) if node.inputs else None
        if edges is None or edges[0] != axis:
            return whole
        if node.op == "pad" and not self.is_zero(node.inputs[1]):
            return whole
        _, low, high = edges
        return _widened(self.pieces(node.inputs[0], axis, depth + 1), low, high)

    def shift(self, value: Operand) -> _Shift | None:
        """The shift that makes a value, also where another node makes other values beside it."""
        if not isinstance(value, int) or value in self.shifts or value not in self.graph.maker:
            return self.shifts.get(value) if isinstance(value, int) else None
        is_part = self.nodes[self.graph.maker[value]].op == "split"
        return _of_pieces(self, value) if is_part else None

    def is_zero(self, value: Operand) -> bool:
        """Whether a value is zeros that the program is written with."""
        while isinstance(value, int) and value in self.graph.maker:
            node = self.nodes[self.graph.maker[value]]
            if node.op not in ("broadcast_in_dim", "convert_element_type"):
                return False
            value = node.inputs[0]
        return isinstance(value, Literal) and repr(value.value) in _ZEROS

    def type_of(self, value: Operand) -> TensorType:
        return self.graph.type_of(value)


def _edges(node: Node, output: int, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """The one dimension that a slice, split or pad changes, and what it adds at either end.

    Negative where elements are left out; None for other nodes, and more than one dimension.
    """
    if node.op == "split":
        sizes, axis = ints(node.attr("sizes")), whole_number(node.attr("axis"))
        return axis, -sum(sizes[:output]), -sum(sizes[output + 1 :])
    if node.op == "slice" and node.attr("strides") in (None, (1,) * len(shape)):
        starts, limits = ints(node.attr("start_indices")), ints(node.attr("limit_indices"))
        ends = [(-a, b - n) for a, b, n in zip(starts, limits, shape, strict=True)]
    elif node.op == "pad" and not any(row[2] for row in pairs(node.attr("padding_config"))):
        ends = [row[:2] for row in pairs(node.attr("padding_config"))]
    else:
        return None
    changed = [(d, low, high) for d, (low, high) in enumerate(ends) if (low, high) != (0, 0)]
    return changed[0] if len(changed) == 1 else None


def _widened(pieces: tuple[_Piece, ...], low: int, high: int) -> tuple[_Piece, ...]:
    """Pieces with zeros at the ends, or with elements left out there."""
    size, at, kept = sum(p.size for p in pieces), 0, list[_Piece]()
    for piece in pieces:
        first, last = max(0, -low - at), min(piece.size, size + high - at)
        if first < last:
            kept.append(_Piece(piece.source, piece.start + first, piece.start + last))
        at += piece.size
    zeros = [_Piece(None, 0, max(0, n)) for n in (low, high)]
    return _joined((zeros[0], *kept, zeros[1]))


def _joined(pieces: Iterable[_Piece]) -> tuple[_Piece, ...]:
    """Pieces without empty ones; those that go on where the one before ends are one."""
    found: list[_Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last and last.source is None and piece.source is None:
            found[-1] = _Piece(None, 0, last.size + piece.size)
        elif last and (last.source, last.stop) == (piece.source, piece.start):
            found[-1] = _Piece(last.source, last.start, piece.stop)
        elif piece.size:
            found.append(piece)
    return tuple(found)


def _of_pieces(known: _Makers, value: int) -> _Shift | None:
    number, made = known.graph.maker[value], known.type_of(value)
    node, output = known.nodes[number], value - known.graph.first_value[number]
    if node.op == "concatenate":
        axis = whole_number(node.attr("dimension"))
    else:
        edges = _edges(node, output, known.type_of(node.inputs[0]).shape)
        if edges is None:
            return None
        axis = edges[0]
    pieces = known.pieces(value, axis)
    if len(pieces) != 2:
        return None
    first, second = pieces
    x = first.source if second.source is None else second.source
    if x is None or known.type_of(x) != made:
        return None
    size = made.shape[axis]
    if first.source is None:
        return _Shift(x, axis, first.size, False) if second.start == 0 else None
    if second.source is None:
        return _Shift(x, axis, -second.size, False) if first.stop == size else None
    around = first.source == second.source and (first.stop, second.start) == (size, 0)
    return _Shift(x, axis, _nearest(first.size, size), True) if around else None


def _of_sum(known: _Makers, value: int) -> _Shift | None:
    node = known.nodes[known.graph.maker[value]]
    parts = [known.shift(v) for v in node.inputs]
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
_DEEPEST = 8  # slices, pads and concatenations of one another
_MOST = 8  # operands of a concatenation: two pieces are left of those that matter
_READ = {
    "add": _of_sum, "add_any": _of_sum, "concatenate": _of_pieces, "pad": _of_pieces,
    "slice": _of_pieces,
}  # fmt: skip
