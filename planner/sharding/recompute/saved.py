"""The values that a backward pass reads of its forward pass, and what they are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ir import Node, TensorType
from ir.analysis import Place
from ir.trace import Program

from .across import Across, InBody, InLoops
from .draft import Draft, Item, draft_of
from .passes import bodies_with_passes, pairs_of

Key = tuple[Place, int]  # a body, and the number of a value there


@dataclass(frozen=True, slots=True)
class Made:
    """A node of a forward pass.

    index: its number in the body.
    reads: values of the body that it reads.
    outs: numbers of its results; read: those that the backward pass reads.
    again: whether it can be computed again.
    """

    index: int
    node: Node
    reads: tuple[int, ...]
    outs: tuple[int, ...]
    read: frozenset[int]
    again: bool


@dataclass(frozen=True)
class Layer:
    """A body with a forward pass.

    loop: whether it is the body of a loop over layers.
    copies: copies of each value that are kept: one for each layer of a loop.
    nodes: nodes of the forward pass, in order.
    """

    place: Place
    loop: bool
    copies: float
    nodes: tuple[Made, ...]

    def keys(self, nodes: Collection[Made]) -> frozenset[Key]:
        """The results of some nodes that can be computed again."""
        return frozenset((self.place, v) for node in nodes if node.again for v in node.outs)

    def needed(self) -> list[Made]:
        """The nodes out of which what the backward pass reads is made."""
        wanted: set[int] = set()
        found: list[Made] = []
        for node in reversed(self.nodes):
            if node.read or not wanted.isdisjoint(node.outs):
                found.append(node)
                wanted.update(node.reads)
        return found[::-1]

    def made_again(self, values: Collection[Key]) -> tuple[list[Made], float]:
        """Nodes that run again where values are computed again, and bytes of all that is kept.

        Args:
            values: results of nodes that may be computed again.

        Returns:
            Nodes, the last first, and the bytes on one device of what these and the backward pass
            read.
        """
        chosen = {v for place, v in values if place == self.place}
        wanted: set[int] = set()
        nbytes, found = 0.0, list[Made]()
        for node in reversed(self.nodes):
            needed = node.read | wanted.intersection(node.outs)
            if not chosen.isdisjoint(needed):
                found.append(node)
                wanted.update(node.reads)
            nbytes += sum(self.nbytes(node, v) for v in needed if v not in chosen)
        return found, nbytes

    def type_of(self, node: Made, value: int) -> TensorType:
        """Type of one copy of a result of a node."""
        return node.node.outputs[node.outs.index(value)]

    def nbytes(self, node: Made, value: int) -> float:
        """Bytes of all copies of a result of a node, on one device."""
        return self.copies * self.type_of(node, value).nbytes


def layers_of(program: Program, late: Iterable[int] = ()) -> tuple[Layer, ...]:
    """Every body with a forward pass, of a program that keeps everything.

    Args:
        program: forward and backward pass.
        late: inputs that are there only when the backward pass begins.
    """
    return tuple(_layers(draft_of(program, late=late), (), 1.0))


def _layers(draft: Draft, place: Place, copies: float) -> Iterator[Layer]:
    for i, b, body in bodies_with_passes(draft):
        yield from _layers(body, (*place, i, b), copies)
    numbers = {id(item): i for i, item in enumerate(draft.items)}
    loops: dict[int, Item] = {}
    for pair in pairs_of(draft):
        if id(pair.forward) in loops:
            continue
        loops[id(pair.forward)] = pair.forward
        length = pair.forward.node.attr("length")
        assert isinstance(length, int)
        inside = (*place, numbers[id(pair.forward)], 0)
        across = InLoops(draft, pair)
        yield Layer(inside, True, copies * length, _nodes(across, across.target.items, ()))
    if any(item.backward for item in draft.items):
        marked = [item for item in draft.items if item.backward]
        yield Layer(place, False, copies, _nodes(InBody(draft), marked, loops))


def _nodes(across: Across, backward: Collection[Item], loops: Collection[int]) -> tuple[Made, ...]:
    """Nodes of a forward pass; loops over layers are not computed again as a whole."""
    source = across.source
    read = {across.forward(v) for item in backward for v in item.ins}
    if isinstance(across, InLoops):
        read |= {across.forward(v) for v in across.target.outputs}
    found: list[Made] = []
    for i, item in enumerate(source.items):
        if isinstance(across, InBody) and any(across.forward(v) is None for v in item.outs):
            continue
        again = id(item) not in loops and not item.node.has_attr("effect")
        outs = tuple(v - source.first for v in item.outs)
        needed = frozenset(v - source.first for v in item.outs if v in read)
        reads = tuple(dict.fromkeys(v - source.first for v in item.reads))
        found.append(Made(i, item.node, reads, outs, needed, again))
    return tuple(found)
