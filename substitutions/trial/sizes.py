"""The same small program with shorter dimensions.

Dimensions that go together form a class, by the factor specs of the ops. A class has places where
parts of it were joined or will be cut; each stretch between two of them is shortened alone.
Dimensions that an op uses in another way keep their lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

from ir import FactorSpec, Graph, Input, IRError, Literal, Node, TensorType, check, lookup
from ir.analysis import find

LONGEST = 3  # of a stretch
MOST_ROUNDS = 40
MOST_LENGTH = 1 << 16  # of a dimension that keeps its length
Ints = tuple[int, ...]
Place = tuple[int, int]  # value, dimension


class KeptError(Exception):
    """The sizes cannot be changed together."""


@dataclass
class _Class:
    """Dimensions of one length.

    cuts: places inside, in order; all of them where the length is kept.
    parts: for each factorisation by a reshape, the classes of the factors.
    length: the new one, where a window demands one.
    """

    size: int
    cuts: set[int] = field(default_factory=set[int])
    parts: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    length: int | None = None
    kept: bool = False


def shortened(graph: Graph) -> Graph:
    """The graph with lengths of a few elements wherever its ops allow it.

    Raises:
        KeptError: if sizes do not fit together, or stay too large.
    """
    try:
        return check(_Shortener(graph).run(), after="shortening")
    except IRError as error:
        raise KeptError(str(error)) from error


class _Shortener:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.parent: list[int] = []
        self.classes: list[_Class] = []
        self.of: dict[Place, int] = {}
        self.links: list[tuple[int, int, int]] = []  # (part, whole, offset of the part)
        self.lengths: dict[int, int] = {}

    def run(self) -> Graph:
        for value, type_ in enumerate(self.graph.types):
            for d, size in enumerate(type_.shape):
                self.of[value, d] = self._new(size)
        for i, node in enumerate(self.graph.nodes):
            self._read(i, node)
        self._settle()
        return self._written()

    # --- classes -------------------------------------------------------------------------------

    def _new(self, size: int) -> int:
        self.parent.append(len(self.parent))
        self.classes.append(_Class(size))
        return self.parent[-1]

    def _find(self, c: int) -> int:
        return find(self.parent, c)

    def _merge(self, a: int, b: int) -> None:
        a, b = self._find(a), self._find(b)
        if a == b:
            return
        x, y = self.classes[a], self.classes[b]
        if x.size != y.size:
            raise KeptError(f"{x.size} elements and {y.size} go together")
        self.parent[b] = a
        x.cuts |= y.cuts
        x.parts += y.parts
        x.kept = x.kept or y.kept or (None not in (x.length, y.length) and x.length != y.length)
        x.length = y.length if x.length is None else x.length

    def _class(self, c: int) -> _Class:
        return self.classes[self._find(c)]

    def _keep(self, c: int) -> None:
        self._class(c).kept = True

    # --- what ops say --------------------------------------------------------------------------

    def _read(self, i: int, node: Node) -> None:
        operands: list[list[int]] = []
        for o in node.inputs:
            rank = self.graph.type_of(o).rank
            own = [self._new(n) for n in self.graph.type_of(o).shape]
            operands.append(own if isinstance(o, Literal) else [self.of[o, d] for d in range(rank)])
        results = [
            [self.of[v, d] for d in range(self.graph.types[v].rank)]
            for v in self.graph.values_of(i)
        ]
        types = tuple(self.graph.type_of(o) for o in node.inputs)
        spec = lookup(node.op).factors(types, node.outputs, dict(node.attrs))
        free = self._pieces(node, operands, results)
        if node.op == "conv_general_dilated":
            free |= self._window(node, operands, results)
        factors: dict[str, int] = {}
        tensors = [*zip(spec.operands, operands, strict=True)]
        tensors += zip(spec.results, results, strict=True)
        for dims, classes in tensors:
            for dim, c in zip(dims, classes, strict=True):
                if c not in free:
                    self._dimension(spec, factors, dim, c)

    def _dimension(
        self, spec: FactorSpec, factors: dict[str, int], dim: tuple[str, ...], c: int
    ) -> None:
        if not dim or any(spec.kind(name) in ("whole", "window") for name in dim):
            self._keep(c)
            return
        for name in dim:
            if name not in factors:
                factors[name] = self._new(spec.size(name))
        if len(dim) == 1:
            self._merge(c, factors[dim[0]])
        else:
            self._class(c).parts.append(tuple(factors[name] for name in dim))

    def _pieces(
        self, node: Node, operands: Sequence[list[int]], results: Sequence[list[int]]
    ) -> set[int]:
        """Dimensions that are joined or cut: which part lies where in which whole."""
        found: set[int] = set()
        if node.op == "concatenate":
            axis = cast("int", node.attr("dimension"))
            parts, whole = [dims[axis] for dims in operands], results[0][axis]
            starts = _starts([self._class(c).size for c in parts])
            pairs = [(c, whole, at) for c, at in zip(parts, starts, strict=True)]
        elif node.op == "split":
            axis = cast("int", node.attr("axis"))
            starts = _starts(cast("Ints", node.attr("sizes")))
            pairs = [
                (dims[axis], operands[0][axis], at)
                for dims, at in zip(results, starts, strict=True)
            ]
        elif node.op == "slice" and node.attr("strides") is None:
            starts = cast("Ints", node.attr("start_indices"))
            both = zip(results[0], operands[0], starts, strict=True)
            pairs = [x for x in both if self._class(x[0]).size != self._class(x[1]).size]
        else:
            return found
        self.links += pairs
        return {c for part, whole, _ in pairs for c in (part, whole)}

    def _window(
        self, node: Node, operands: Sequence[list[int]], results: Sequence[list[int]]
    ) -> set[int]:
        """Positions of a convolution that pads as much as keeps one result for each stride."""
        specs = dict(cast("tuple[tuple[str, Ints], ...]", node.attr("dimension_numbers")))
        strides = cast("Ints", node.attr("window_strides"))
        found: set[int] = set()
        for k, stride in enumerate(strides):
            image = operands[0][specs["lhs_spec"][2 + k]]
            window = self._class(operands[1][specs["rhs_spec"][2 + k]]).size
            out, size = results[0][specs["out_spec"][2 + k]], self._class(image).size
            if self._class(out).size != -(-size // stride) or size < 4 * (window + stride):
                continue
            length = 2 * (window + stride)
            length += (size - length) % stride
            for c, n in ((image, length), (out, -(-length // stride))):
                own = self._class(c)
                own.kept = own.kept or own.length not in (None, n)
                own.length = n
                found.add(c)
        return found

    # --- lengths -------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Carries cuts over joins, until nothing changes, and chooses lengths."""
        for _ in range(MOST_ROUNDS):
            if not self._spread():
                break
        else:
            raise KeptError("parts of dimensions do not settle")
        for c in range(len(self.parent)):
            self._length(self._find(c))

    def _spread(self) -> bool:
        changed = False
        for part, whole, at in self.links:
            a, b = self._class(part), self._class(whole)
            for own in (a, b):
                own.kept = own.kept or bool(own.parts) or own.length is not None
            ends = {n for n in (at, at + a.size) if 0 < n < b.size}
            down = {n - at for n in _cuts(b) if at < n < at + a.size}
            up = ends | {n + at for n in _cuts(a)}
            changed |= not (up <= _cuts(b) and down <= _cuts(a))
            if not b.kept:
                b.cuts |= up
            if not a.kept:
                a.cuts |= down
        for c in {self._find(x) for x in range(len(self.parent))}:
            changed |= self._of_parts(self.classes[c])
        return changed

    def _of_parts(self, own: _Class) -> bool:
        """Products: what one way to see a class keeps, the others and their factors keep too."""
        if not own.parts:
            return False
        first = [self._find(c) for c in own.parts[0]]
        same = all([self._find(c) for c in way] == first for way in own.parts)
        if not same and self._one_way(own):
            return True
        factors = [self._class(c) for way in own.parts for c in way]
        fixed = not same or own.cuts or own.length is not None
        kept = own.kept or fixed or any(f.kept or f.cuts or f.length is not None for f in factors)
        if not kept:
            return False
        before = own.kept and all(f.kept for f in factors)
        own.kept = True
        for f in factors:
            f.kept = True
        return not before

    def _one_way(self, own: _Class) -> bool:
        """Merges factors of ways that have equal lengths; whether all have."""
        sizes = [[self._class(c).size for c in way] for way in own.parts]
        if any(other != sizes[0] for other in sizes):
            return False
        for way in own.parts[1:]:
            for a, b in zip(own.parts[0], way, strict=True):
                self._merge(a, b)
        return True

    def _length(self, c: int) -> int:
        if c not in self.lengths:
            own = self.classes[c]
            if own.kept:
                if own.size > MOST_LENGTH:
                    raise KeptError(f"a dimension of {own.size} elements cannot be shortened")
                found = own.size
            elif own.parts:
                found = math.prod(self._length(self._find(x)) for x in own.parts[0])
            elif own.length is not None and not own.cuts:
                found = own.length
            else:
                found = self._at(own, own.size)
            self.lengths[c] = found
        return self.lengths[c]

    def _at(self, own: _Class, place: int) -> int:
        """Where a place of a dimension is once it is shortened."""
        if own.kept:
            return place
        edges = sorted({0, place, *(n for n in own.cuts if n < place)})
        return sum(min(b - a, LONGEST) for a, b in pairwise(edges))

    # --- the program ---------------------------------------------------------------------------

    def _written(self) -> Graph:
        types = [
            TensorType(
                tuple(self._length(self._find(self.of[v, d])) for d in range(t.rank)),
                t.dtype,
            )
            for v, t in enumerate(self.graph.types)
        ]
        inputs = tuple(
            Input(item.name, types[v], item.role) for v, item in enumerate(self.graph.inputs)
        )
        nodes: list[Node] = []
        for i, node in enumerate(self.graph.nodes):
            outs = tuple(types[v] for v in self.graph.values_of(i))
            ins = tuple(o.type if isinstance(o, Literal) else types[o] for o in node.inputs)
            attrs = dict(node.attrs)
            local = lookup(node.op).local
            if local is not None:
                attrs |= local(ins, outs, attrs)
            if node.op in ("slice", "split"):
                attrs |= self._cut(i, node, outs)
            nodes.append(
                Node(node.op, node.inputs, outs, tuple((k, attrs[k]) for k, _ in node.attrs))
            )
        return Graph(inputs, tuple(nodes), self.graph.outputs)

    def _cut(self, i: int, node: Node, outs: Sequence[TensorType]) -> Mapping[str, Ints]:
        """Attributes of a slice or split at the places where its cuts are now."""
        if node.op == "split":
            axis = cast("int", node.attr("axis"))
            return {"sizes": tuple(t.shape[axis] for t in outs)}
        operand = cast("int", node.inputs[0])
        starts = cast("Ints", node.attr("start_indices"))
        if node.attr("strides") is not None:
            return {}
        found = tuple(
            self._at(self._class(self.of[operand, d]), at) if at else 0
            for d, at in enumerate(starts)
        )
        ends = zip(found, outs[0].shape, strict=True)
        return {"start_indices": found, "limit_indices": tuple(a + n for a, n in ends)}


def _cuts(own: _Class) -> set[int]:
    if own.kept:
        if own.size > MOST_LENGTH:
            raise KeptError(f"a dimension of {own.size} elements cannot be shortened")
        return set(range(1, own.size))
    return own.cuts


def _starts(sizes: Iterable[int]) -> list[int]:
    found, at = list[int](), 0
    for size in sizes:
        found.append(at)
        at += size
    return found
