"""Where the values of an update are: on one group of devices, or in pieces on several.

Parameters and gradients have their places; what is computed of them follows. State that meets
them entry by entry (moments) lies where they do. Numbers that several groups contribute to (a
global norm) are computed on the first group. Values made of constants and numbers have no place:
whoever reads them makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir import FactorSpec, Graph, Literal, Node, lookup

HUB = 0
REDUCTIONS = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min"}
RESHAPED = {"broadcast_in_dim": "shape", "reshape": "new_sizes"}
_SHAPES = {"shape", "new_sizes", "limit_indices", "slice_sizes", "padding_config", "sizes"}


@dataclass(frozen=True, slots=True)
class At:
    """A whole value on one group of devices."""

    group: int


@dataclass(frozen=True, slots=True)
class Stack:
    """A value in pieces along its first dimension: (group, first, end), in order."""

    pieces: tuple[tuple[int, int, int], ...]


Where = At | Stack
Known = dict[int, "Where | None"]


@dataclass(frozen=True)
class Places:
    """Places of all values of a graph; None for those that anybody can make.

    along: nodes that run piece by piece -> factor that is cut.
    """

    of: Mapping[int, Where | None]
    along: Mapping[int, str]
    specs: tuple[FactorSpec, ...]


def places_of(
    graph: Graph, known: Mapping[int, Where | None], ties: Sequence[tuple[int, int]]
) -> Places:
    """Places of all values.

    Args:
        graph: of the update.
        known: places of its inputs, as far as they are given; None for captured constants.
        ties: (input, output position) of state that is replaced.
    """
    walk = _Walk(graph)
    alike = _Alike(graph, ties)
    inputs: Known = dict(known)
    while True:
        of, _ = walk.run(inputs)
        met = {alike.root(v): where for v, where in of.items() if where and graph.types[v].rank}
        new = {
            v: met[alike.root(v)]
            for v in range(len(graph.inputs))
            if v not in inputs and alike.root(v) in met
        }
        if not new:
            break
        inputs |= new
    for v in range(len(graph.inputs)):
        inputs.setdefault(v, At(HUB))
    of, along = walk.run(inputs)
    return Places(of, along, walk.specs)


class _Walk:
    """One pass over a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.specs = tuple(_spec(graph, node) for node in graph.nodes)

    def run(self, inputs: Known) -> tuple[Known, dict[int, str]]:
        """Places that follow from those of the inputs, and the ops that run piece by piece."""
        of, along = dict(inputs), dict[int, str]()
        for i, node in enumerate(self.graph.nodes):
            read = [v for v in node.inputs if isinstance(v, int)]
            if all(v not in of for v in read) and read:
                continue
            placed = {v: where for v in read if (where := of.get(v)) is not None}
            arrays = {v: where for v, where in placed.items() if self.graph.types[v].rank}
            where = self._where(node, placed, arrays, complete=all(v in of for v in read))
            values = self.graph.values_of(i)
            stack = next((w for w in arrays.values() if isinstance(w, Stack)), None)
            factor = self._factor(i, stack, of) if stack else None
            for k, v in enumerate(values):
                if where is _UNKNOWN:
                    continue
                of[v] = where
                if factor is not None and not self._has(i, k, factor):
                    of[v] = At(HUB)
            if stack and factor is None:  # put together where its first piece is
                of.update(dict.fromkeys(values, At(stack.pieces[0][0])))
            elif stack and factor is not None:
                along[i] = factor
        return of, along

    def _where(
        self, node: Node, placed: dict[int, Where], arrays: dict[int, Where], *, complete: bool
    ) -> Where | None:
        stack = next((where for where in arrays.values() if isinstance(where, Stack)), None)
        if stack is not None:
            return stack
        if arrays:
            return arrays[max(arrays, key=lambda v: self.graph.types[v].size)]
        if not complete:
            return _UNKNOWN
        if not placed or (any(t.rank for t in node.outputs) and _is_cheap(node)):
            return None
        groups = set(placed.values())
        return groups.pop() if len(groups) == 1 else At(HUB)

    def _factor(self, i: int, stack: Stack, of: Known) -> str | None:
        """The factor that an op can be cut along, with all its stacked operands; None if not."""
        node, spec = self.graph.nodes[i], self.specs[i]
        if node.bodies or (_is_shaped(node) and node.op not in RESHAPED):
            return None
        factor = ""
        for k, o in enumerate(node.inputs):
            where = of.get(o) if isinstance(o, int) else None
            dims = spec.operands[k]
            if isinstance(where, Stack):
                if where != stack or len(dims[0]) != 1 or factor not in ("", dims[0][0]):
                    return None
                factor = dims[0][0]
        for dims in spec.operands:
            if any(factor in dim for dim in dims[1:]) or (dims and factor in dims[0] != (factor,)):
                return None
        fits = all(self._fits(i, k, factor) for k in range(len(node.outputs)))
        return factor if fits else None

    def _fits(self, i: int, k: int, factor: str) -> bool:
        dims, kind = self.specs[i].results[k], self.specs[i].kind(factor)
        inside = any(factor in dim for dim in dims[1:])
        if self._has(i, k, factor):
            return kind == "plain" and not inside
        return self.graph.nodes[i].op in REDUCTIONS and not any(factor in dim for dim in dims)

    def _has(self, i: int, k: int, factor: str) -> bool:
        dims = self.specs[i].results[k]
        return bool(dims) and dims[0] == (factor,)


_UNKNOWN = At(-1)


def _is_shaped(node: Node) -> bool:
    """Whether an op's attributes name the shape of its result."""
    return any(name in _SHAPES for name, value in node.attrs if value is not None)


def _is_cheap(node: Node) -> bool:
    """Whether whoever wants the result may make it anew."""
    return lookup(node.op).family in ("elementwise", "layout")


def _spec(graph: Graph, node: Node) -> FactorSpec:
    types = tuple(graph.type_of(o) for o in node.inputs)
    return lookup(node.op).factors(types, node.outputs, dict(node.attrs))


class _Alike:
    """Values of one shape that ops combine entry by entry."""

    def __init__(self, graph: Graph, ties: Sequence[tuple[int, int]]) -> None:
        self.above = list(range(len(graph.types)))
        for i, node in enumerate(graph.nodes):
            if lookup(node.op).family != "elementwise":
                continue
            ends = [*(o for o in node.inputs if isinstance(o, int)), *graph.values_of(i)]
            shape = node.outputs[0].shape
            same = [v for v in ends if graph.types[v].shape == shape and shape]
            for v in same[1:]:
                self.join(same[0], v)
        for a, k in ties:
            out = graph.outputs[k]
            if not isinstance(out, Literal) and graph.types[a].rank:
                self.join(a, out)

    def root(self, v: int) -> int:
        while self.above[v] != v:
            self.above[v] = self.above[self.above[v]]
            v = self.above[v]
        return v

    def join(self, a: int, b: int) -> None:
        self.above[self.root(a)] = self.root(b)
