"""Values of a flat program that are equal because they are made in the same way."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from ir import REGIONS, Graph, Literal, Node, Scan, While, lookup
from ir.analysis import FlatProgram, Link, Place

_PASSING = (
    "broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "name", "reshape",
    "slice", "squeeze", "stop_gradient", "transpose",
)  # fmt: skip
_ALONE = ("collective", "control", "effect", "opaque", "random")  # never taken for equal
_UNSIGNED = ("argmax", "argmin", "iota", "top_k")


def node_at(graph: Graph, place: Place) -> Node:
    """The node at a place."""
    node = graph.nodes[place[0]]
    for body, number in zip(place[1::2], place[2::2], strict=True):
        node = node.bodies[body].nodes[number]
    return node


@dataclass
class ValueNumbers:
    """Numbers that equal values share, in every iteration of the loops around them."""

    flat: FlatProgram
    found: dict[int, int] = field(default_factory=dict[int, int])
    known: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    def __post_init__(self) -> None:
        self.links: dict[int, list[Link]] = {}
        for link in self.flat.links:
            self.links.setdefault(link.target, []).append(link)
        self.slices = {*self.flat.stacked.values()}
        for op in self.flat.ops:
            made = (op.node.op, op.node.attrs, tuple(self.of(v) for v in op.inputs))
            for k, v in enumerate(op.outputs):
                family = lookup(op.node.op).family
                alone = family in _ALONE or (not op.inputs and op.node.op != "iota")
                type_ = op.node.outputs[k]
                self.found[v] = self._of(("alone", v) if alone else (made, k, type_))

    def of(self, v: int | Literal) -> int:
        """The number of a value."""
        if isinstance(v, Literal):
            return self._of(("literal", repr(v)))
        if v not in self.found:
            link = self.only_link(v)
            if v in self.flat.stacked:
                self.found[v] = self._of(("stack", v))
            elif link is None:
                self.found[v] = self._of(("alone", v))
            elif link.lift:
                self.found[v] = self.sliced(self.of(link.source), link.site.place)
            else:
                self.found[v] = self.of(link.source)
        return self.found[v]

    def sliced(self, of: Hashable, place: Place) -> int:
        """The number of what a loop takes of a stack."""
        return self._of(("slice", of, place))

    def only_link(self, v: int) -> Link | None:
        """The link that brings a port its value, in all iterations; None if there is none."""
        links = self.links.get(v, [])
        if len(links) != 1:
            return None
        (link,) = links
        if v in self.slices:
            return link
        place, at, position = link.site
        if at != "operand":
            return None
        node = node_at(self.flat.graph, place)
        if node.op not in REGIONS:
            return None
        return None if _carries(node, position) else link

    def is_unsigned(self, v: int | Literal) -> bool:
        """Whether whole numbers are never negative."""
        while isinstance(v, int):
            op, link = self.flat.made_by(v), self.only_link(v)
            if op is None:
                if v in self.flat.stacked:
                    v = self.flat.stacked[v]
                elif link is None:
                    return False
                else:
                    v = link.source
            elif op.node.op in _UNSIGNED:
                return v == op.outputs[-1]  # of a `top_k` the second
            elif op.node.op in _PASSING:
                v = op.inputs[0]
            else:
                return False
        return False

    def _of(self, key: Hashable) -> int:
        return self.known.setdefault(key, len(self.known))


def _carries(node: Node, position: int) -> bool:
    """Whether an operand of a loop is carried from iteration to iteration."""
    if node.op == "scan":
        wiring = Scan.of(node)
        return wiring.constants <= position < wiring.constants + wiring.carries
    if node.op == "while":
        loop = While.of(node)
        return position >= loop.test_constants + loop.step_constants
    return False
