"""Splits a stage's traced program into forward, input-gradient and weight-gradient programs.

Nodes that depend on no incoming gradient are the forward part. Of the others, those that the
outgoing gradients depend on are the input gradient, the rest is the weight gradient. Values that a
later part reads of an earlier one are saved, except those that light ops can recompute from saved
values and arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ir import Graph, Input, Literal, Node, Operand, lookup
from ir.trace import Program

LIGHT = ("elementwise", "layout")


@dataclass(frozen=True)
class Part:
    """Some nodes of a program as a program of their own.

    nodes: indices in the whole program, in order.
    reads: values of the whole program that are its arguments, in order.
    makes: operands of the whole program that are its results.
    program: the extracted program; its inputs are captured constants, then `reads`.
    number: value of the whole program -> value of the part.
    """

    nodes: tuple[int, ...]
    reads: tuple[int, ...]
    makes: tuple[Operand, ...]
    program: Program
    number: Mapping[int, int]


@dataclass(frozen=True)
class Split:
    """The parts of a stage's program.

    forward, backward: the two-way split; `input_gradient` and `weight_gradient` split `backward`.
    saved: values of `forward` that `backward` reads.
    between: values of `input_gradient` that `weight_gradient` reads.
    """

    forward: Part
    backward: Part
    input_gradient: Part
    weight_gradient: Part
    saved: tuple[int, ...]
    between: tuple[int, ...]


def part_of(
    program: Program, nodes: Iterable[int], makes: Sequence[Operand],
    captured: Mapping[int, Any] | None = None,
) -> Part:  # fmt: skip
    """Extracts nodes as a program.

    Args:
        program: the whole program.
        nodes: indices of the nodes.
        makes: operands to return; literals and arguments pass through.
        captured: arguments that are always the same arrays.
    """
    graph, order = program.graph, tuple(sorted(nodes))
    arrays = {**dict(enumerate(program.consts)), **(captured or {})}
    inside = {v for i in order for v in graph.values_of(i)}
    operands = [o for i in order for o in graph.nodes[i].inputs] + list(makes)
    wanted = dict.fromkeys(o for o in operands if isinstance(o, int) and o not in inside)
    consts = [v for v in wanted if v in arrays]
    reads = [v for v in wanted if v not in arrays]
    number = {v: k for k, v in enumerate((*consts, *reads))}
    inputs = [*(graph.inputs[v] for v in consts), *(_input(graph, v) for v in reads)]
    kept: list[Node] = []
    for i in order:
        node = graph.nodes[i]
        for v in graph.values_of(i):
            number[v] = len(number)
        kept.append(_renumbered(node, number))
    outputs = tuple(o if isinstance(o, Literal) else number[o] for o in makes)
    alone = Program(
        Graph(tuple(inputs), tuple(kept), outputs), tuple(program.bindings[i] for i in order),
        tuple(arrays[v] for v in consts),
    )  # fmt: skip
    return Part(order, tuple(reads), tuple(makes), alone, number)


def _input(graph: Graph, v: int) -> Input:
    return graph.inputs[v] if v < len(graph.inputs) else Input(f"v{v}", graph.types[v])


def _renumbered(node: Node, number: dict[int, int]) -> Node:
    inputs = tuple(o if isinstance(o, Literal) else number[o] for o in node.inputs)
    return replace(node, inputs=inputs)


def split(
    program: Program,
    gives: Sequence[Operand],
    slopes: Sequence[Operand],
    sums: Sequence[Operand],
    late: Iterable[int],
    captured: Mapping[int, Any] | None = None,
) -> Split:
    """Splits a stage's program into its parts.

    Args:
        program: computes all three kinds of results.
        gives: results of the stage.
        slopes: gradients sent to earlier stages.
        sums: accumulated gradients of parameters.
        late: arguments that exist only when the backward pass begins.
        captured: as of `part_of`.
    """
    graph, maker = program.graph, program.graph.maker
    after = values_after(graph, late)
    ends = nodes_behind(graph, maker, (*slopes, *sums))
    backward = {i for i in ends if graph.values_of(i)[0] in after}
    backward |= _again(graph, backward, after, ends, (*slopes, *sums))
    reads = _reads(graph, backward, (*slopes, *sums))
    saved = tuple(v for v in sorted(reads) if v in maker and maker[v] not in backward)
    forward = nodes_behind(graph, maker, (*gives, *saved)) - {
        i for i in backward if _late(graph, i, after)
    }
    first = nodes_behind(graph, maker, slopes) & backward
    second = nodes_behind(graph, maker, sums) & backward
    repeated = {i for i in second & first if not _late(graph, i, after)}
    second = (second - first) | repeated
    between = tuple(
        v for v in sorted(_reads(graph, second, sums)) if v in maker and maker[v] in first - second
    )
    return Split(
        part_of(program, forward, (*gives, *saved), captured),
        part_of(program, backward, (*slopes, *sums), captured),
        part_of(program, first, (*slopes, *between), captured),
        part_of(program, second, sums, captured),
        saved, between,
    )  # fmt: skip


def _late(graph: Graph, i: int, after: set[int]) -> bool:
    return graph.values_of(i)[0] in after


def values_after(graph: Graph, values: Iterable[int]) -> set[int]:
    """The given values, and all values that depend on them."""
    after = set(values)
    for i, node in enumerate(graph.nodes):
        if any(o in after for o in node.inputs):
            after.update(graph.values_of(i))
    return after


def nodes_behind(graph: Graph, maker: Mapping[int, int], ends: Sequence[Operand]) -> set[int]:
    """Nodes that the operands `ends` depend on; `maker` maps a value to its node."""
    found: set[int] = set()
    todo = [o for o in ends if isinstance(o, int)]
    while todo:
        i = maker.get(todo.pop())
        if i is not None and i not in found:
            found.add(i)
            todo.extend(o for o in graph.nodes[i].inputs if isinstance(o, int))
    return found


def _reads(graph: Graph, nodes: set[int], ends: Sequence[Operand]) -> set[int]:
    """Values from elsewhere that the nodes read or that are results."""
    inside = {v for i in nodes for v in graph.values_of(i)}
    read = {o for i in nodes for o in graph.nodes[i].inputs if isinstance(o, int)}
    return (read | {o for o in ends if isinstance(o, int)}) - inside


def _again(
    graph: Graph, backward: set[int], after: set[int], ends: set[int], outputs: Sequence[Operand]
) -> set[int]:
    """Light forward nodes that the backward pass recomputes instead of saving their results.

    Their operands are arguments, saved for another reader, or recomputed themselves.
    """
    read, maker = _reads(graph, backward, outputs), graph.maker
    there = {v for v in range(len(graph.inputs)) if v not in after}
    there |= {v for v in read if v in maker and not _is_light(graph.nodes[maker[v]])}
    again: set[int] = set()
    cheap: set[int] = set()
    plain: set[int] = set()  # values computed from literals only, which have no sharding
    for i in sorted(ends - backward):
        node = graph.nodes[i]
        if all(isinstance(o, Literal) or o in plain for o in node.inputs):
            plain.update(graph.values_of(i))
            there.update(graph.values_of(i))
            cheap.add(i)
        elif _is_light(node) and all(isinstance(o, Literal) or o in there for o in node.inputs):
            cheap.add(i)
            there.update(graph.values_of(i))
    for i in sorted(cheap, reverse=True):
        if not read.isdisjoint(graph.values_of(i)):
            again.add(i)
            read.update(o for o in graph.nodes[i].inputs if isinstance(o, int))
    return again


def _is_light(node: Node) -> bool:
    return lookup(node.op).family in LIGHT or node.op == "constant"
