"""Gradients of a bias that nothing reads: backward kernels of attention are asked for none.

JAX asks a backward kernel for the gradient of every bias, also of one that was made of a mask. It
has the size of all scores, and keeps the sequence of keys on one device.
"""

from __future__ import annotations

from dataclasses import replace

from .graph import Graph, Node, Operand
from .ops.attention import BACKWARD
from .ops.attention_math import has_bias_gradient
from .program import Binding, Call, Program

_OTHERS = 3  # gradients of query, key and value, before that of a bias
_ASKED = "variadic_args"


def without_bias_gradients(program: Program) -> Program:
    """The program without gradients of biases that nothing reads."""
    graph = program.graph
    used = {o for node in graph.nodes for o in node.inputs if isinstance(o, int)}
    used |= {o for o in graph.outputs if isinstance(o, int)}
    idle = {
        i for i, node in enumerate(graph.nodes)
        if node.op == BACKWARD and len(node.outputs) > _OTHERS
        and has_bias_gradient(dict(node.attrs)) and graph.values_of(i)[_OTHERS] not in used
    }  # fmt: skip
    if not idle:
        return program
    renamed = {v: v for v in range(len(graph.inputs))}
    nodes: list[Node] = []
    bindings: list[Binding] = []
    value = len(graph.inputs)

    def known(operand: Operand) -> Operand:
        return renamed[operand] if isinstance(operand, int) else operand

    for i, (node, binding) in enumerate(zip(graph.nodes, program.bindings, strict=True)):
        outputs, attrs = node.outputs, node.attrs
        if i in idle:
            outputs = outputs[:_OTHERS]
            attrs = tuple((k, (True, False) if k == _ASKED else v) for k, v in attrs)
            binding = replace(binding, params=binding.params | {_ASKED: (True, False)})
        inputs = tuple(map(known, node.inputs))
        nodes.append(replace(node, inputs=inputs, outputs=outputs, attrs=attrs))
        bindings.append(binding)
        for old in list(graph.values_of(i))[: len(outputs)]:
            renamed[old] = value
            value += 1

    def kept(values: tuple[Operand | None, ...]) -> tuple[Operand | None, ...]:
        return tuple(renamed.get(o) if isinstance(o, int) else o for o in values)

    calls = tuple(Call(c.path, kept(c.operands), kept(c.results)) for c in program.calls)
    found = Graph(graph.inputs, tuple(nodes), tuple(map(known, graph.outputs)))
    return Program(found, tuple(bindings), program.consts, calls)
