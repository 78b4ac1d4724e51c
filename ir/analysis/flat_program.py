"""A program as one flat list of operations and values, and the places at which values pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..graph import Graph, Literal, Node
from ..types import TensorType

Place = tuple[int, ...]  # node index, then (body index, node index) for each level


class Site(NamedTuple):
    """A place at which a value is read or made.

    place: of a node, or of a body, () of the program.
    at: "operand" or "result" of the node, "return" of the body.
    position: among these.
    """

    place: Place
    at: str
    position: int


class Passage(NamedTuple):
    """A value at a site: it may change its state there.

    value, op: flat numbers; op is -1 where none reads or makes the value.
    link: number of the link that it takes, else -1.
    weight: runs in one call.
    time: moment.
    """

    site: Site
    value: int
    op: int
    link: int
    weight: float
    time: int


class FlatOp(NamedTuple):
    """An operation at its place; values are numbers of the flat program.

    reads: values among the inputs, each once.
    """

    node: Node
    place: Place
    inputs: tuple[int | Literal, ...]
    outputs: tuple[int, ...]
    weight: float  # how often it runs in one call
    time: int
    reads: tuple[int, ...]


class FlatValue(NamedTuple):
    """A value: an argument, a result of an op, or a port."""

    type: TensorType
    name: str
    kind: str  # argument | op | port
    time: int
    weight: float
    region_end: int  # ports live until their region ends; others -1


@dataclass(frozen=True, slots=True)
class Link:
    """`source` is resharded into the port `target`, `weight` times per call.

    `lift` is 1 if the source has a leading dimension that the port lacks (xs), else 0.
    """

    source: int
    target: int
    weight: float
    lift: int
    time: int
    site: Site


@dataclass(frozen=True, slots=True)
class Region:
    """A node that runs bodies: its moments [start, end), and its ports.

    entered: ports that hold its operands inside; left: values after it that it leaves, its stacks
    of slices apart, which are `stacks`.
    """

    place: Place
    start: int
    end: int
    entered: tuple[int, ...]
    left: tuple[int, ...]
    stacks: tuple[int, ...] = ()


@dataclass
class FlatProgram:
    """All values and operations of a graph and its bodies."""

    graph: Graph
    values: list[FlatValue] = field(default_factory=list[FlatValue])
    ops: list[FlatOp] = field(default_factory=list[FlatOp])
    links: list[Link] = field(default_factory=list[Link])
    regions: list[Region] = field(default_factory=list[Region])  # inner ones first
    # value of the flat program -> (port, 1): the value is the port with a leading dimension (ys)
    stacked: dict[int, int] = field(default_factory=dict[int, int])
    inputs: list[int] = field(default_factory=list[int])
    outputs: list[int | Literal] = field(default_factory=list[int | Literal])
    forced: set[int] = field(default_factory=set[int])  # values that must be whole everywhere
    names: dict[tuple[Place, int], int] = field(default_factory=dict[tuple[Place, int], int])
    # values that a region of `jax.checkpoint` only passes on, and when it begins: not before them
    barriers: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    warnings: list[str] = field(default_factory=list[str])
    clock: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock - 1

    def new(
        self, type_: TensorType, name: str, kind: str, weight: float, time: int | None = None
    ) -> int:
        """A new value, made at `time` or else now."""
        made = self.clock if time is None else time
        self.values.append(FlatValue(type_, name, kind, made, weight, -1))
        return len(self.values) - 1

    @cached_property
    def maker(self) -> dict[int, tuple[int, int]]:
        """Value -> op that makes it, and position among its results."""
        return {v: (i, k) for i, op in enumerate(self.ops) for k, v in enumerate(op.outputs)}

    @cached_property
    def readers(self) -> dict[int, list[FlatOp]]:
        """Value -> ops that read it, in order; absent if none does."""
        found: dict[int, list[FlatOp]] = {}
        for op in self.ops:
            for v in op.reads:
                found.setdefault(v, []).append(op)
        return found

    def made_by(self, v: int) -> FlatOp | None:
        """The op that makes a value."""
        return self.ops[self.maker[v][0]] if v in self.maker else None

    def line(self, place: Place) -> str:
        """The user's line of a node, or of that whose body is at a place; empty if unknown."""
        graph, node = self.graph, None
        for k, number in enumerate(place):
            if k % 2 == 0:
                node = graph.nodes[number]
            elif node is not None:
                graph = node.bodies[number]
        return node.source if node else ""

    @cached_property
    def passages(self) -> tuple[Passage, ...]:
        """Every value at every site: those of operations, of links, of the program's results."""
        found: list[Passage] = []
        for i, op in enumerate(self.ops):
            for at, values in (("operand", op.inputs), ("result", op.outputs)):
                for k, v in enumerate(values):
                    if isinstance(v, int):
                        site = Site(op.place, at, k)
                        found.append(Passage(site, v, i, -1, op.weight, op.time))
        for n, link in enumerate(self.links):
            found.append(Passage(link.site, link.source, -1, n, link.weight, link.time))
        for k, v in enumerate(self.outputs):
            if isinstance(v, int):
                found.append(Passage(Site((), "return", k), v, -1, -1, 1.0, self.clock - 1))
        return tuple(found)


def flat_type(flat: FlatProgram, value: int | Literal) -> TensorType:
    return value.type if isinstance(value, Literal) else flat.values[value].type


def operand_types(flat: FlatProgram, op: FlatOp) -> tuple[TensorType, ...]:
    return tuple(v.type if isinstance(v, Literal) else flat.values[v].type for v in op.inputs)


def is_float(type_: TensorType) -> bool:
    return type_.dtype.startswith(("float", "bfloat", "complex")) and type_.dtype != "float0"
