"""A graph with the JAX primitive and parameters of each node, and captured arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .graph import Graph, Node, Operand


@dataclass(frozen=True)
class Binding:
    """The JAX primitive of a node, its parameters, and programs for its bodies.

    params: without those that place results, which the plan places.
    path: number of its equation, after number and name of each inlined call around it.
    backward: whether JAX made the equation for the backward pass of a derivative.
    traceback: JAX's, of the lines that made the equation; None if none did.
    """

    primitive: Any
    params: dict[str, Any]
    bodies: tuple[Program, ...] = ()
    path: tuple[int | str, ...] = ()
    backward: bool = False
    traceback: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Call:
    """A call with a custom derivative, which the graph has inlined.

    path: as of the bindings inside.
    operands, results: values of the graph; None where nothing reads them.
    """

    path: tuple[int | str, ...]
    operands: tuple[Operand | None, ...]
    results: tuple[Operand | None, ...]


@dataclass(frozen=True)
class Program:
    """A graph with one binding per node; `consts` are the values of its first inputs."""

    graph: Graph
    bindings: tuple[Binding, ...]
    consts: tuple[Any, ...] = ()
    calls: tuple[Call, ...] = ()


def prune(program: Program) -> Program:
    """Drops nodes without used results or effects."""
    graph = program.graph
    wanted = {o for o in graph.outputs if isinstance(o, int)}
    keep: list[int] = []
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        if not wanted.isdisjoint(graph.values_of(i)) or node.has_attr("effect"):
            keep.append(i)
            wanted.update([o for o in node.inputs if isinstance(o, int)])
    keep.reverse()
    if len(keep) == len(graph.nodes):
        return program
    renamed: dict[int, int] = {v: v for v in range(len(graph.inputs))}
    nodes: list[Node] = []
    next_value = len(graph.inputs)
    for i in keep:
        node = graph.nodes[i]
        inputs = tuple([renamed[o] if isinstance(o, int) else o for o in node.inputs])
        nodes.append(Node(node.op, inputs, node.outputs, node.attrs, node.bodies, node.source))
        for value in graph.values_of(i):
            renamed[value] = next_value
            next_value += 1
    outputs = tuple(renamed[o] if isinstance(o, int) else o for o in graph.outputs)

    def kept(values: tuple[Operand | None, ...]) -> tuple[Operand | None, ...]:
        return tuple(renamed.get(o) if isinstance(o, int) else o for o in values)

    return Program(
        Graph(graph.inputs, tuple(nodes), outputs),
        tuple(program.bindings[i] for i in keep),
        program.consts,
        tuple(Call(call.path, kept(call.operands), kept(call.results)) for call in program.calls),
    )
