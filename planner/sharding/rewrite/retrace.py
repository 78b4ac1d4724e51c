# pyright: basic
"""A rewritten graph as a program again: old nodes run as they were traced, new ones by `lax`.

It is traced once more, so that everything after it meets an ordinary traced program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import lax

from ir import Graph, IRError, Node, Scan
from ir.evaluate import plain_program
from ir.trace import Binding, Program, Traced, const_aval, read_jaxpr
from substitutions import Draft, Mark

Array = Any

_LEFT_OUT = ("convert_element_type", "device_put")


def retraced(traced: Traced, draft: Draft) -> Traced:
    """The traced function with the rewritten program in place of its own.

    Args:
        traced: the function as it was traced.
        draft: its graph, rewritten.

    Raises:
        IRError: if the program has other results than before.
    """
    old = traced.program
    program = _program(draft.graph, draft.marks, old)
    structs = [_struct(const_aval(const)) for const in old.consts]
    closed = jax.make_jaxpr(plain_program(program))(*structs, *traced.args_info)
    found = read_jaxpr(closed.jaxpr, closed.consts, draft.graph.inputs)
    before, after = ([g.type_of(o) for o in g.outputs] for g in (old.graph, found.graph))
    if before != after:
        raise IRError(f"the rewritten program returns {after}, expected {before}")
    graph = with_lines(found.graph, draft.graph)
    return replace(traced, program=Program(graph, found.bindings, (*closed.consts, *old.consts)))


def with_lines(graph: Graph, known: Graph) -> Graph:
    """A graph with the user's source lines of one that has the same ops.

    Tracing again may make operands of what loops have captured, which changes no op, and leaves out
    copies and casts that change nothing.
    """
    nodes, others = list[Node](), iter(known.nodes)
    for node in graph.nodes:
        other = next(others, None)
        while other and other.op in _LEFT_OUT and not _alike(node, other):
            other = next(others, None)
        if other is None or other.op != node.op:
            return graph
        bodies = tuple(map(with_lines, node.bodies, other.bodies))
        nodes.append(replace(node, source=other.source, bodies=bodies))
    return replace(graph, nodes=tuple(nodes))


def _alike(node: Node, other: Node) -> bool:
    return node.op == other.op and node.outputs == other.outputs


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _program(graph: Graph, marks: Sequence[Mark], old: Program, consts: Any = None) -> Program:
    bindings = tuple(
        _binding(node, mark, old) for node, mark in zip(graph.nodes, marks, strict=True)
    )
    return Program(graph, bindings, old.consts if consts is None else consts)


def _binding(node: Node, mark: Mark, old: Program) -> Binding:
    if mark.like:
        held = _held(old, mark.like)
        return Binding(held.primitive, held.params | _changed(node))
    if not mark.place:
        return Binding(_Written(_new(node)), {})
    held = _held(old, mark.place)
    bodies = tuple(
        _program(body, marks, old, was.consts)
        for body, marks, was in zip(node.bodies, mark.bodies, held.bodies, strict=True)
    )
    params = dict(held.params)
    if node.op == "scan":
        params["num_consts"] = Scan.of(node).constants
    return Binding(held.primitive, params, bodies)


def _held(program: Program, place: tuple[int, ...]) -> Binding:
    """What runs the node at a place of the traced program."""
    found = program.bindings[place[0]]
    if len(place) == 1:
        return found
    return _held(found.bodies[place[1]], place[2:])


@dataclass(frozen=True)
class _Written:
    """Stands for a primitive: runs a node that a rule made."""

    run: Callable[..., Array]
    name = "written"
    multiple_results = False

    def bind(self, *operands: Array, **_: Any) -> Array:
        return self.run(*operands)


def _new(node: Node) -> Callable[..., Array]:
    """What runs a node that is like none of the program's own."""
    attrs: Mapping[str, Any] = dict(node.attrs)
    match node.op:
        case "add" | "max" | "mul":
            return getattr(lax, node.op)
        case "broadcast_in_dim":
            return lambda x: lax.broadcast_in_dim(x, attrs["shape"], attrs["broadcast_dimensions"])
        case "concatenate":
            return lambda *xs: lax.concatenate(xs, attrs["dimension"])
        case "reshape":
            return lambda x: lax.reshape(x, attrs["new_sizes"])
        case "slice":
            return lambda x: lax.slice(x, attrs["start_indices"], attrs["limit_indices"])
        case "transpose":
            return lambda x: lax.transpose(x, attrs["permutation"])
        case _:
            raise IRError(f"no rule makes a {node.op}")


def _changed(node: Node) -> dict[str, Any]:
    """Parameters in which a new node differs from the one that it is like."""
    attrs: Mapping[str, Any] = dict(node.attrs)
    match node.op:
        case "dot_general":
            return {"dimension_numbers": attrs["dimension_numbers"]}
        case "gather":
            numbers = lax.GatherDimensionNumbers(**dict(attrs["dimension_numbers"]))
            names = ("slice_sizes", "indices_are_sorted", "unique_indices")
            return {"dimension_numbers": numbers} | {name: attrs[name] for name in names}
        case "reduce_max" | "reduce_sum":
            return {"axes": attrs["axes"]}
        case _:
            return {}
