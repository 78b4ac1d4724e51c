"""A traced program as lists that can be edited: nodes that move, operands that come and go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from ir import Graph, Input, Literal, Node, Scan, TensorType
from ir.trace import Binding, Program

Value = int | Literal


class Numbers:
    """Numbers for the values of a program and all of its bodies; each is used once."""

    def __init__(self) -> None:
        self.types: dict[int, TensorType] = {}
        self._next = count()

    def new(self, type_: TensorType) -> int:
        """The number of a new value."""
        number = next(self._next)
        self.types[number] = type_
        return number


@dataclass(eq=False)
class Item:
    """A node whose operands and results are numbers of values.

    bodies: bodies that are edited, by position; the others are as in the binding.
    backward: whether it belongs to the backward pass.
    """

    node: Node
    binding: Binding
    ins: list[Value]
    outs: list[int]
    backward: bool
    bodies: dict[int, Draft] = field(default_factory=dict[int, "Draft"])

    @property
    def reads(self) -> list[int]:
        """The operands that are values."""
        return [v for v in self.ins if isinstance(v, int)]

    @property
    def op(self) -> str:
        return self.node.op

    def wiring(self) -> Scan:
        """Numbers of constants and carries of a scan."""
        return Scan.of(self.node)


@dataclass(eq=False)
class Draft:
    """One body, or the whole program.

    inputs: its captured constants first.
    late: inputs that are there only when the backward pass begins.
    first: number of its first value before it was edited; the others followed.
    """

    numbers: Numbers
    inputs: list[tuple[int, Input]]
    items: list[Item]
    outputs: list[Value]
    consts: tuple[Any, ...] = ()
    first: int = 0
    late: frozenset[int] = frozenset()

    @property
    def entered(self) -> list[int]:
        """Inputs after the captured constants."""
        return [v for v, _ in self.inputs[len(self.consts) :]]

    def type_of(self, value: Value) -> TensorType:
        return value.type if isinstance(value, Literal) else self.numbers.types[value]

    def makers(self) -> dict[int, Item]:
        """Value -> node that makes it."""
        return {v: item for item in self.items for v in item.outs}

    def body(self, item: Item, number: int = 0) -> Draft:
        """A body of a node, opened for editing."""
        if number not in item.bodies:
            item.bodies[number] = draft_of(item.binding.bodies[number], self.numbers)
        return item.bodies[number]


def draft_of(program: Program, numbers: Numbers | None = None, late: Iterable[int] = ()) -> Draft:
    """A program opened for editing; without `numbers`, its values keep their numbers.

    Args:
        program: a body, or the whole program.
        numbers: of the program that it is part of.
        late: inputs that are there only when the backward pass begins.
    """
    numbers = numbers or Numbers()
    graph = program.graph
    env = [numbers.new(t) for t in graph.types]
    items = [
        Item(
            node, binding, [env[o] if isinstance(o, int) else o for o in node.inputs],
            [env[v] for v in graph.values_of(i)], binding.backward,
        )
        for i, (node, binding) in enumerate(zip(graph.nodes, program.bindings, strict=True))
    ]  # fmt: skip
    inputs = list(zip(env, graph.inputs, strict=False))
    outputs = [env[o] if isinstance(o, int) else o for o in graph.outputs]
    late_inputs = frozenset(env[v] for v in late)
    return Draft(numbers, inputs, items, outputs, program.consts, env[0] if env else 0, late_inputs)


def program_of(draft: Draft) -> Program:
    """The edited program, without nodes, operands and slices that nothing reads."""
    kept = _live(draft)
    number = {v: k for k, (v, _) in enumerate(draft.inputs)}
    nodes: list[Node] = []
    bindings: list[Binding] = []

    def renamed(values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(number[v] if isinstance(v, int) else v for v in values)

    for item in kept:
        node, binding = _closed(draft, item)
        nodes.append(replace(node, inputs=renamed(item.ins)))
        bindings.append(binding)
        for v in item.outs:
            number[v] = len(number)
    heads = len(draft.consts)
    inputs = tuple(
        replace(item, name=f"in{k - heads}") if item.role == "body" else item
        for k, (_, item) in enumerate(draft.inputs)
    )
    graph = Graph(inputs, tuple(nodes), renamed(draft.outputs))
    return Program(graph, tuple(bindings), draft.consts)


def _closed(draft: Draft, item: Item) -> tuple[Node, Binding]:
    """A node with its edited bodies, and what runs it."""
    outputs = tuple(draft.numbers.types[v] for v in item.outs)
    if not item.bodies:
        return replace(item.node, outputs=outputs), item.binding
    programs = list(item.binding.bodies)
    for number, body in item.bodies.items():
        programs[number] = program_of(body)
    graphs = tuple(program.graph for program in programs)
    node = replace(item.node, inputs=(), outputs=outputs, bodies=graphs)
    return node, replace(item.binding, bodies=tuple(programs))


def with_numbers(item: Item, **changed: int) -> None:
    """Changes whole numbers among a node's attributes and parameters, such as `num_consts`."""
    attrs = tuple((key, changed.get(key, value)) for key, value in item.node.attrs)
    item.node = replace(item.node, attrs=attrs)
    item.binding = replace(item.binding, params={**item.binding.params, **changed})


def _live(draft: Draft) -> list[Item]:
    """The nodes with results that are read, and effects; loops without slices that are not."""
    wanted = {v for v in draft.outputs if isinstance(v, int)}
    kept: list[Item] = []
    for item in reversed(draft.items):
        if wanted.isdisjoint(item.outs) and not item.node.has_attr("effect"):
            continue
        if 0 in item.bodies and item.op in _TRIM:
            _TRIM[item.op](item, wanted)
        kept.append(item)
        wanted.update(item.reads)
    return kept[::-1]


def _trim_scan(item: Item, wanted: set[int]) -> None:
    """Takes slices that nothing reads, and operands that its body does not read, out of a scan."""
    body, wiring = item.bodies[0], item.wiring()
    carries = wiring.carries
    stays = [k for k, v in enumerate(item.outs) if k < carries or v in wanted]
    item.outs = [item.outs[k] for k in stays]
    body.outputs = [body.outputs[k] for k in stays]
    body.items = _live(body)
    read = {v for inner in body.items for v in inner.reads}
    read |= {v for v in body.outputs if isinstance(v, int)}
    heads, first = len(body.consts), wiring.constants
    entered = [
        k for k, v in enumerate(body.entered)
        if v in read or first <= k < first + carries
    ]  # fmt: skip
    item.ins = [item.ins[k] for k in entered]
    body.inputs = [*body.inputs[:heads], *(body.inputs[heads + k] for k in entered)]
    with_numbers(item, num_consts=sum(k < first for k in entered))


def _trim_remat(item: Item, wanted: set[int]) -> None:
    """Takes results that nothing reads, and operands that it does not read, out of a region."""
    body = item.bodies[0]
    stays = [k for k, v in enumerate(item.outs) if v in wanted]
    item.outs = [item.outs[k] for k in stays]
    body.outputs = [body.outputs[k] for k in stays]
    body.items = _live(body)
    read = {v for inner in body.items for v in inner.reads}
    read |= {v for v in body.outputs if isinstance(v, int)}
    entered = [k for k, v in enumerate(body.entered) if v in read]
    item.ins = [item.ins[k] for k in entered]
    heads = len(body.consts)
    body.inputs = [*body.inputs[:heads], *(body.inputs[heads + k] for k in entered)]


_TRIM = {"remat": _trim_remat, "scan": _trim_scan}
