"""A graph that can be rewritten: values go by their maker, so that nothing is renumbered."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from ir import Attrs, Graph, Input, Literal, Node, TensorType

Value = tuple[int, int]  # (item, its output); item -1 are the inputs of the graph
Source = Value | Literal
# Ops whose results are not the same if run twice, or are kept apart by the user.
_APART = ("optimization_barrier", "rng_bit_generator", "rng_uniform")


class Mark(NamedTuple):
    """Where a node comes from: its place in the traced program, () for a node that a rule made.

    bodies: marks of the nodes of its bodies.
    like: place of a traced node whose manner (precision, mode, strides) a new one takes.
    """

    place: tuple[int, ...]
    bodies: tuple[tuple[Mark, ...], ...] = ()
    like: tuple[int, ...] = ()


@dataclass(frozen=True)
class Draft:
    """A graph, and for each of its nodes where it comes from."""

    graph: Graph
    marks: tuple[Mark, ...]

    @cached_property
    def net(self) -> Net:
        """The graph as a net, which is not to be changed."""
        return _net_of(self)

    def body(self, at: int, number: int) -> Draft:
        """A body of a node as a draft."""
        key = at, number
        if key not in self._bodies:
            self._bodies[key] = Draft(
                self.graph.nodes[at].bodies[number], self.marks[at].bodies[number]
            )
        return self._bodies[key]

    @cached_property
    def _bodies(self) -> dict[tuple[int, int], Draft]:
        return {}


@dataclass(frozen=True, slots=True)
class Item:
    """A node on named values; `order` is its number in the graph before, None for a new one."""

    node: Node
    inputs: tuple[Source, ...]
    mark: Mark
    order: int | None


@dataclass
class Net:
    """Items by number; equal new items are one.

    line: the user's source line of new items.
    """

    inputs: list[Input]
    items: dict[int, Item] = field(default_factory=dict[int, Item])
    outputs: list[Source] = field(default_factory=list[Source])
    users: dict[Value, dict[int, None]] = field(default_factory=dict[Value, dict[int, None]])
    made: dict[object, int] = field(default_factory=dict[object, int])
    first: dict[Value, Value] = field(default_factory=dict[Value, Value])
    count: int = 0
    line: str = ""

    def copy(self) -> Net:
        """A net that can be changed while this one stays."""
        users = {value: dict(readers) for value, readers in self.users.items()}
        return Net(
            self.inputs, dict(self.items), list(self.outputs), users, dict(self.made), self.first,
            self.count,
        )  # fmt: skip

    def equal(self, left: Source, right: Source) -> bool:
        """Whether two values are one, or made by the same ops from the same values."""
        if isinstance(left, Literal) or isinstance(right, Literal):
            return left == right
        return self.first.get(left, left) == self.first.get(right, right)

    def type_of(self, source: Source) -> TensorType:
        if isinstance(source, Literal):
            return source.type
        item, output = source
        return self.inputs[output].type if item < 0 else self.items[item].node.outputs[output]

    def maker(self, source: Source) -> Item | None:
        """The item that makes a value; None for inputs and literals."""
        if isinstance(source, Literal) or source[0] < 0:
            return None
        return self.items[source[0]]

    def users_of(self, source: Source) -> tuple[int, ...]:
        """Items that read a value, in the order of the graph."""
        return () if isinstance(source, Literal) else tuple(self.users.get(source, ()))

    def put(self, item: Item) -> int:
        """Adds an item."""
        number = self.count
        self.count += 1
        self.items[number] = item
        for source in item.inputs:
            if not isinstance(source, Literal):
                self.users.setdefault(source, {})[number] = None
        return number

    def make(
        self,
        op: str,
        inputs: Sequence[Source],
        type_: TensorType,
        attrs: Attrs,
        like: Item | None = None,
    ) -> Value:
        """The result of a new node; an equal new node is reused.

        like: an item whose manner it takes.
        """
        key = (op, tuple(inputs), type_, repr(attrs))
        held = self.made.get(key)
        if held is None:
            node = Node(op, (), (type_,), attrs, source=self.line)
            place = () if like is None else like.mark.place or like.mark.like
            held = self.put(Item(node, tuple(inputs), Mark((), (), place), None))
            self.made[key] = held
        return held, 0

    def swap(self, old: Value, new: Source) -> None:
        """Every reader of `old` reads `new` instead."""
        for number in self.users.pop(old, {}):
            item = self.items[number]
            inputs = tuple(new if source == old else source for source in item.inputs)
            self.items[number] = replace(item, inputs=inputs)
            if not isinstance(new, Literal):
                self.users.setdefault(new, {})[number] = None
        self.outputs = [new if source == old else source for source in self.outputs]

    def reaches(self, start: Iterable[Source], goals: set[int]) -> bool:
        """Whether `start` depends on one of the items in `goals`."""
        least = min(self._order(number) for number in goals)
        stack = [s[0] for s in start if not isinstance(s, Literal) and s[0] >= 0]
        seen: set[int] = set()
        while stack:
            number = stack.pop()
            if number in seen:
                continue
            if number in goals:
                return True
            seen.add(number)
            if self.items[number].order is not None and self._order(number) < least:
                continue  # old items depend on older ones, unless a rule changed them
            stack.extend(_makers(self.items[number]))
        return False

    def _order(self, number: int) -> int:
        order = self.items[number].order
        return -1 if order is None else order


def _net_of(draft: Draft) -> Net:
    """A graph as a net; items are numbered as its nodes are."""
    graph = draft.graph
    net = Net(list(graph.inputs))
    values: list[Value] = [(-1, k) for k in range(len(graph.inputs))]

    def source(operand: int | Literal) -> Source:
        return operand if isinstance(operand, Literal) else values[operand]

    for i, (node, mark) in enumerate(zip(graph.nodes, draft.marks, strict=True)):
        number = net.put(Item(node, tuple(map(source, node.inputs)), mark, i))
        values.extend((number, k) for k in range(len(node.outputs)))
    net.outputs = [source(operand) for operand in graph.outputs]
    net.first = _first_equal(net)
    return net


def _first_equal(net: Net) -> dict[Value, Value]:
    """For results of an op that was run before on equal values, those of the first run."""
    found: dict[Value, Value] = {}
    seen: dict[object, list[int]] = {}  # runs of one op on the same values
    for n, item in net.items.items():
        node = item.node
        if node.bodies or node.has_attr("effect") or node.op in _APART:
            continue
        inputs = tuple([s if isinstance(s, Literal) else found.get(s, s) for s in item.inputs])
        runs = seen.setdefault((node.op, inputs), [])
        first = next((k for k in runs if _runs_alike(net.items[k].node, node)), None)
        if first is None:
            runs.append(n)
        else:
            found |= {(n, k): (first, k) for k in range(len(node.outputs))}
    return found


def _runs_alike(left: Node, right: Node) -> bool:
    """Whether two nodes of one op do the same to the same values."""
    return left.outputs == right.outputs and repr(left.attrs) == repr(right.attrs)


def marked(graph: Graph, prefix: tuple[int, ...] = ()) -> tuple[Mark, ...]:
    """Marks of a program as it was traced."""
    return tuple(
        Mark(
            (*prefix, i), tuple(marked(body, (*prefix, i, b)) for b, body in enumerate(node.bodies))
        )
        for i, node in enumerate(graph.nodes)
    )


def draft_of(graph: Graph) -> Draft:
    """A traced graph before any rule."""
    return Draft(graph, marked(graph))


def finished(net: Net) -> Draft | None:
    """The graph of a net without dead items; None if its items depend on each other in a circle.

    Old items stay in their order wherever they can; a new one stands before its first reader.
    """
    alive = _alive(net)
    keys = _keys(net, alive)
    wanted = sorted(sorted(alive), key=keys.__getitem__)
    place = {n: i for i, n in enumerate(wanted)}
    if all(place[maker] < place[n] for n, makers in alive.items() for maker in makers):
        return _numbered(net, wanted)
    order = _in_order(net, alive, keys, wanted)
    return _numbered(net, order) if len(order) == len(alive) else None


def _in_order(
    net: Net,
    alive: Mapping[int, list[int]],
    keys: Mapping[int, tuple[int, int]],
    wanted: Sequence[int],
) -> list[int]:
    """Items after those that they need, otherwise by their keys; some are missing in a circle."""
    needs = {n: set(makers) for n, makers in alive.items()}
    effects = [n for n in wanted if net.items[n].node.has_attr("effect")]
    for before, after in pairwise(effects):
        needs[after].add(before)
    waiting = {n: len(found) for n, found in needs.items()}
    readers: dict[int, list[int]] = {}
    for n, found in needs.items():
        for before in found:
            readers.setdefault(before, []).append(n)
    ready = [(keys[n], n) for n, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        n = heapq.heappop(ready)[1]
        order.append(n)
        for reader in readers.get(n, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (keys[reader], reader))
    return order


def _makers(item: Item) -> list[int]:
    return [s[0] for s in item.inputs if not isinstance(s, Literal) and s[0] >= 0]


def _alive(net: Net) -> dict[int, list[int]]:
    """Items that are needed, and who makes what each reads."""
    stack = [s[0] for s in net.outputs if not isinstance(s, Literal) and s[0] >= 0]
    stack += [n for n, item in net.items.items() if item.node.has_attr("effect")]
    alive: dict[int, list[int]] = {}
    while stack:
        n = stack.pop()
        if n not in alive:
            alive[n] = _makers(net.items[n])
            stack.extend(alive[n])
    return alive


def _keys(net: Net, alive: Mapping[int, list[int]]) -> dict[int, tuple[int, int]]:
    """Where each item wants to stand: (number of an old item, new ones before it)."""
    end, items = len(net.items), net.items
    fresh = [n for n in sorted(alive, reverse=True) if items[n].order is None]
    readers: dict[int, set[int]] = {n: set() for n in fresh}
    keys: dict[int, tuple[int, int]] = {}
    for n, makers in alive.items():
        order = items[n].order
        if order is not None:
            keys[n] = (order, 1)
        for maker in makers:
            if maker in readers:
                readers[maker].add(n)
    for _ in range(2):  # a new item may be read by one that was made before it
        for n in fresh:
            wanted = [keys[r][0] for r in readers[n] if r in keys]
            keys[n] = (min(wanted, default=end), 0)
    return keys


def _numbered(net: Net, order: Sequence[int]) -> Draft:
    values: dict[Value, int] = {(-1, k): k for k in range(len(net.inputs))}
    nodes: list[Node] = []
    count = len(net.inputs)
    for n in order:
        item = net.items[n]
        node, inputs = item.node, operands(item.inputs, values)
        if inputs != node.inputs:
            node = Node(node.op, inputs, node.outputs, node.attrs, node.bodies, node.source)
        nodes.append(node)
        for k in range(len(item.node.outputs)):
            values[n, k] = count
            count += 1
    graph = Graph(tuple(net.inputs), tuple(nodes), operands(net.outputs, values))
    return Draft(graph, tuple(net.items[n].mark for n in order))


def operands(sources: Sequence[Source], values: Mapping[Value, int]) -> tuple[int | Literal, ...]:
    """Sources as operands of a graph."""
    return tuple([s if isinstance(s, Literal) else values[s] for s in sources])
