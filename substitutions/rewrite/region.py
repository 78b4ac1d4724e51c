"""What a rule changes at one place: both sides of it as one small graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir import Graph, Input, Literal, Node, Operand

from ..program.net import Item, Net, Source, Value
from .match import Match

# Sides of rules have fewer nodes; more mean that the two sides do not begin at the same values.
MOST_NODES = 200
_SKIPPED = ("slice", "transpose")  # as new nodes are, see `nodes.py`


@dataclass(frozen=True)
class Region:
    """The left side of a rule as the program has it, and the right side as it would be written.

    graph: its inputs are the values that both sides read; its outputs those of the left side, then
        those of the right side. None if the left side reads values that the rule does not.
    where: the user's source line.
    """

    rule: str
    graph: Graph | None
    where: str = ""


def region_of(net: Net, found: Match, new: Sequence[Source]) -> Region:
    """Both sides at a place.

    Args:
        net: the program, with the right side written and nothing exchanged yet.
        found: the place.
        new: results of the right side, one for each root.
    """
    walk = _Walk(net)
    for source in dict.fromkeys(found.needs()):
        walk.given(_behind(net, source))
    roots: list[Source] = [*found.roots, *new]
    ready = all(walk.visit(source) for source in roots)
    outputs = tuple(walk.operand(source) for source in roots) if ready else ()
    where = net.items[found.roots[0][0]].node.source
    graph = Graph(tuple(walk.inputs), tuple(walk.nodes), outputs) if ready else None
    return Region(found.pattern.name, graph, where)


def _behind(net: Net, source: Source) -> Source:
    """The value that a transpose or slice was made from: the right side may read that one."""
    item = net.maker(source)
    while item is not None and item.node.op in _SKIPPED:
        source = item.inputs[0]
        item = net.maker(source)
    return source


class _Walk:
    """Collects the nodes between given values and some results."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.numbers: dict[Value, int] = {}
        self.pending: list[tuple[Item, int]] = []
        self.count = 0

    def _first(self, value: Value) -> Value:
        """The value that stands for all equal ones."""
        return self.net.first.get(value, value)

    def given(self, source: Source) -> None:
        """Makes a value an input of the graph."""
        if not isinstance(source, Literal) and self._first(source) not in self.numbers:
            self.numbers[self._first(source)] = self.count
            self.inputs.append(Input(f"v{self.count}", self.net.type_of(source), "argument"))
            self.count += 1

    def operand(self, source: Source) -> Operand:
        return source if isinstance(source, Literal) else self.numbers[self._first(source)]

    def visit(self, source: Source) -> bool:
        """Adds the nodes that make a value; False if they read more than the given values."""
        stack = [source]
        while stack:
            top = stack[-1]
            if isinstance(top, Literal) or self._first(top) in self.numbers:
                stack.pop()
                continue
            item = self.net.maker(top)
            if item is None or item.node.bodies or len(self.nodes) >= MOST_NODES:
                return False
            missing = [
                s
                for s in item.inputs
                if not isinstance(s, Literal) and self._first(s) not in self.numbers
            ]
            if missing:
                stack.extend(missing)
                continue
            self._add(top, item)
            stack.pop()
        return True

    def _add(self, value: Value, item: Item) -> None:
        node = item.node
        inputs = tuple(map(self.operand, item.inputs))
        self.nodes.append(Node(node.op, inputs, node.outputs, node.attrs))
        for k in range(len(node.outputs)):
            self.numbers.setdefault(self._first((value[0], k)), self.count + k)
        self.count += len(node.outputs)
