"""The graph: values numbered in the order they are made, nodes in execution order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from .errors import IRError
from .types import TensorType

Attr = None | bool | int | float | complex | str | tuple["Attr", ...]
Attrs = tuple[tuple[str, Attr], ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A scalar written into the program.

    Equal literals print alike: NaN is equal to itself, 0.0 and -0.0 differ, and so do 1 and True.
    """

    value: bool | int | float | complex
    type: TensorType

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        return self.type == other.type and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.type))


Operand = int | Literal


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of a graph: its path in the user's pytree, its type and its role.

    `digest` is the content hash of a captured constant, empty for arguments.
    """

    name: str
    type: TensorType
    role: str = "argument"  # parameter | optimizer-state | batch | constant | argument | body
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `bodies` are the sub-graphs of scan, while, cond and remat.

    Attributes are equal if they print alike, as literals are.
    """

    op: str
    inputs: tuple[Operand, ...]
    outputs: tuple[TensorType, ...]
    attrs: Attrs = ()
    bodies: tuple[Graph, ...] = ()
    source: str = ""  # the user's source line; not part of the digest

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Node) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self.op, self.inputs, self.outputs, repr(self.attrs), self.bodies, self.source

    def attr(self, name: str) -> Attr:
        """The attribute of a name.

        Raises:
            IRError: if the node has no such attribute.
        """
        for key, value in self.attrs:
            if key == name:
                return value
        raise IRError(f"{self.op} has no attribute '{name}'; it has {[k for k, _ in self.attrs]}")

    def has_attr(self, name: str) -> bool:
        """Whether the node has an attribute of this name."""
        return name in dict(self.attrs)


@dataclass(frozen=True)
class Graph:
    """Values 0..n-1 are the inputs; each node's outputs take the next numbers.

    A node reads only values made before it, so that every traversal is a `for`.
    """

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Operand, ...]
    types: tuple[TensorType, ...] = field(init=False, compare=False, repr=False)
    first_value: tuple[int, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        types: list[TensorType] = [item.type for item in self.inputs]
        first: list[int] = []
        for i, node in enumerate(self.nodes):
            count = len(types)
            for operand in node.inputs:
                if isinstance(operand, int) and not 0 <= operand < count:
                    raise IRError(f"node {i} ({node.op}) reads {operand}, defined later or never")
            first.append(count)
            types += node.outputs
        late = [j for j in self.outputs if isinstance(j, int) and not 0 <= j < len(types)]
        if late:
            raise IRError(f"the graph returns {late}, which no node defines")
        object.__setattr__(self, "types", tuple(types))
        object.__setattr__(self, "first_value", tuple(first))

    @cached_property
    def _hash(self) -> int:
        return hash((self.inputs, self.nodes, self.outputs))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Graph], tuple[object, ...]]:
        # Hashes of strings differ between processes, so `_hash` is computed anew.
        return Graph, (self.inputs, self.nodes, self.outputs)

    def type_of(self, operand: Operand) -> TensorType:
        return operand.type if isinstance(operand, Literal) else self.types[operand]

    def values_of(self, node_index: int) -> range:
        """The value numbers that a node defines."""
        start = self.first_value[node_index]
        return range(start, start + len(self.nodes[node_index].outputs))

    @cached_property
    def maker(self) -> dict[int, int]:
        """Value -> node that makes it; inputs have none."""
        return {v: i for i in range(len(self.nodes)) for v in self.values_of(i)}

    def users(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each value, its uses as (node index, operand position); outputs are not listed."""
        uses: list[list[tuple[int, int]]] = [[] for _ in self.types]
        for i, node in enumerate(self.nodes):
            for position, operand in enumerate(node.inputs):
                if isinstance(operand, int):
                    uses[operand].append((i, position))
        return tuple(tuple(items) for items in uses)

    @cached_property
    def digest(self) -> str:
        """The digest of the graph, memoised."""
        return hashlib.sha256(_canonical(self).encode()).hexdigest()

    def count_nodes(self) -> int:
        """Number of nodes, including those inside bodies."""
        return sum(1 + sum(body.count_nodes() for body in node.bodies) for node in self.nodes)


def digest(graph: Graph) -> str:
    """A content hash that is stable across processes; source lines do not count."""
    return graph.digest


def _canonical(graph: Graph) -> str:
    parts = [f"in {i.name!r} {i.type} {i.role!r} {i.digest!r}" for i in graph.inputs]
    for node in graph.nodes:
        types = ",".join(map(str, node.outputs))
        bodies = ";".join(digest(body) for body in node.bodies)
        parts.append(f"{types}={node.op!r} {_operands(node.inputs)} {node.attrs!r} {bodies}")
    parts.append(f"return {_operands(graph.outputs)}")
    return "\n".join(parts)


def _operands(operands: tuple[Operand, ...]) -> str:
    return " ".join(f"%{o}" if isinstance(o, int) else f"{o.value!r}:{o.type}" for o in operands)
