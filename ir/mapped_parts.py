"""What of a `shard_map` devices may share along the axes that it leaves to the compiler.

Dimensions of its body that belong together are a *part* if every op of the body does its own work
along them, or adds up along them: the batch of attention in a ring, say. An axis that the
`shard_map` leaves may split a part; operands, results and all in the body are then split along it.
Devices exchange nothing but sums, which are added up where they are made.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .analysis import Classes, FlatOp, FlatProgram, Place, flatten, operand_types
from .factors import FactorSpec
from .graph import Attr, Graph, Literal, Node
from .mesh import Mesh
from .opdef import Types
from .ops.build import opaque
from .ops.mapped import (
    COLLECTIVE_DIMS,
    PARTS,
    PLAIN_COLLECTIVES,
    SHARD_MAP,
    left_axes,
    part_name,
)
from .regions import captured
from .strategy import Strategy, strategies
from .table import lookup

_BY_HAND = ("iota",)  # of ops that must know where their shard starts, those that parts may have


@dataclass(frozen=True)
class MappedParts:
    """The parts of one body.

    flat: the body.
    specs: factors of its ops.
    classes: of its dimensions and factors.
    parts: the class of each part.
    """

    flat: FlatProgram
    specs: tuple[FactorSpec, ...]
    classes: Classes
    parts: tuple[int, ...]
    at: Mapping[Place, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", {op.place: i for i, op in enumerate(self.flat.ops)})

    def factor(self, place: Place, part: int) -> str:
        """The factor of an op that is of a part; empty if it has none."""
        op = self.at[place]
        first, _ = self.classes.factors(op)
        names = self.specs[op].names
        return next((n for k, n in enumerate(names) if self._factor(first + k) == part), "")

    def _factor(self, number: int) -> int:
        member = self.classes.members()[number]
        return self.parts.index(member) if member in self.parts else -1

    def ways(self, place: Place, ways: Mapping[int, float]) -> dict[str, float]:
        """By how much factors of an op are split.

        Args:
            place: of the op.
            ways: by how much parts are split.
        """
        found = {self.factor(place, part): count for part, count in ways.items()}
        return {name: count for name, count in found.items() if name}

    def share(self, place: Place, side: str, k: int, ways: Mapping[int, float]) -> float:
        """By how much an operand or result of an op is split."""
        op = self.flat.ops[self.at[place]]
        value = (op.inputs if side == "operand" else op.outputs)[k]
        if isinstance(value, Literal):
            return 1.0
        first, last = self.classes.dims(value)
        return math.prod(ways.get(self._factor(n), 1.0) for n in range(first, last))

    def sums(self, place: Place, k: int, ways: Mapping[int, float]) -> float:
        """By how much the factors are split that an op adds up in a result."""
        spec = self.specs[self.at[place]]
        kept = {name for dim in spec.results[k] for name in dim}
        found = self.ways(place, ways).items()
        return math.prod(n for name, n in found if spec.kind(name) == "sum" and name not in kept)

    def strategy(self, place: Place, roles: Sequence[str], mesh: Mesh) -> Strategy:
        """The strategy of an op in which each axis splits a factor, or nothing."""
        spec = self.specs[self.at[place]]
        return next(s for s in strategies(spec, mesh) if s.roles == tuple(roles))


@functools.lru_cache(maxsize=64)
def mapped_parts(node: Node) -> MappedParts:
    """The parts of a `shard_map`.

    Raises:
        IRError: if a loop in its body has a form that is not understood.
    """
    return _found(node.bodies[0])


def parts_attribute(
    name: str, attrs: Mapping[str, Attr], bodies: Sequence[Graph]
) -> tuple[tuple[str, Attr], ...]:
    """The parts of a `shard_map` that leaves axes to the compiler, as its attribute; else nothing.

    Of each operand, then of each result, the part of every dimension, -1 for none. Last, what the
    number of pieces of each part must divide.

    Args:
        name: of the op.
        attrs: its attributes.
        bodies: its bodies.
    """
    if name != SHARD_MAP or not left_axes(attrs["auto"]):
        return ()
    (body,) = bodies
    found = _found(body)
    classes, flat = found.classes, found.flat
    number = {member: k for k, member in enumerate(found.parts)}
    inputs = flat.inputs[captured(body) :]

    def of(values: Sequence[int | Literal]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            ()
            if isinstance(v, Literal)
            else tuple(number.get(classes.of_dim(v, d), -1) for d in _dims(flat, v))
            for v in values
        )

    return ((PARTS, (of(inputs), of(flat.outputs), tuple(_sizes(found).values()))),)


def _dims(flat: FlatProgram, value: int) -> range:
    return range(flat.values[value].type.rank)


def _found(body: Graph) -> MappedParts:
    flat = flatten(body)
    factors = tuple(_spec(op, operand_types(flat, op)) for op in flat.ops)
    classes = Classes(flat, factors)
    refused, count = {*_refused(classes, factors)}, captured(body)
    refused |= {classes.of_dim(v, d) for v in flat.inputs[:count] for d in _dims(flat, v)}

    def seen(values: Sequence[int | Literal]) -> dict[int, None]:
        """Classes of the dimensions of values."""
        ranked = [(v, d) for v in values if not isinstance(v, Literal) for d in _dims(flat, v)]
        return dict.fromkeys(classes.of_dim(v, d) for v, d in ranked)

    entering, leaving = seen(flat.inputs[count:]), seen(flat.outputs)
    both = [c for c in entering if c in leaving and c not in refused]
    whole = MappedParts(flat, factors, classes, tuple(both))
    sizes = _sizes(whole)
    return MappedParts(flat, factors, classes, tuple(c for c in whole.parts if sizes[c] > 1))


def _spec(op: FlatOp, operands: Types) -> FactorSpec:
    """Factors of an op; those of a collective over mapped axes are of what each device has."""
    node = op.node
    if node.op not in PLAIN_COLLECTIVES and node.op not in COLLECTIVE_DIMS:
        return lookup(node.op).factors(operands, node.outputs, dict(node.attrs))
    changed = [node.attr(key) for key in COLLECTIVE_DIMS.get(node.op, ())]
    alike = len(operands) == len(node.outputs) and all(
        a.rank == b.rank
        and all(
            x == y or d in changed for d, (x, y) in enumerate(zip(a.shape, b.shape, strict=True))
        )
        for a, b in zip(operands, node.outputs, strict=True)
    )
    if not alike:
        return opaque(operands, node.outputs, dict(node.attrs))
    sizes: dict[str, int] = {}
    tensors: list[tuple[tuple[str, ...], ...]] = []
    for k, type_ in enumerate(operands):
        kept = {d: f"t{k}d{d}" for d, n in enumerate(type_.shape) if d not in changed and n > 1}
        sizes |= {name: type_.shape[d] for d, name in kept.items()}
        tensors.append(tuple((kept[d],) if d in kept else () for d in range(type_.rank)))
    return FactorSpec(tuple(tensors), tuple(tensors), tuple(sizes.items()), ())


def _refused(classes: Classes, specs: Sequence[FactorSpec]) -> Iterator[int]:
    """Classes along which an op of the body neither does its own work alone nor adds up."""
    flat = classes.flat
    for i, (op, spec) in enumerate(zip(flat.ops, specs, strict=True)):
        first, _ = classes.factors(i)
        behind = {f for dims in (*spec.operands, *spec.results) for dim in dims for f in dim[1:]}
        joined = {name for _, members in spec.joint for name in members}
        aware = lookup(op.node.op).offset and op.node.op not in _BY_HAND
        for k, name in enumerate(spec.names):
            own = spec.kind(name) in ("plain", "sum")
            if not own or name in behind or name in joined or aware or op.node.has_attr("effect"):
                yield classes.members()[first + k]
    for v in range(len(flat.values)):
        each = [classes.of_dim(v, d) for d in _dims(flat, v)]
        yield from (c for c in {*each} if each.count(c) > 1)
    lifted = [link.source for link in flat.links if link.lift] + [*flat.stacked]
    yield from (classes.of_dim(v, 0) for v in lifted)
    entered = {link.target for link in flat.links}
    for v, value in enumerate(flat.values):
        if value.kind == "port" and v not in entered and v not in flat.stacked:  # was captured
            yield from (classes.of_dim(v, d) for d in _dims(flat, v))


def _sizes(found: MappedParts) -> dict[int, int]:
    """What the number of pieces of each part must divide."""
    sizes: dict[int, int] = defaultdict(int)
    for i, spec in enumerate(found.specs):
        first, _ = found.classes.factors(i)
        for k, (_, size) in enumerate(spec.sizes):
            member = found.classes.members()[first + k]
            sizes[member] = math.gcd(sizes[member], size)
    for v, value in enumerate(found.flat.values):
        for d, size in enumerate(value.type.shape):
            member = found.classes.of_dim(v, d)
            sizes[member] = math.gcd(sizes[member], size)
    return {member: sizes[member] for member in found.parts}


def parts_split(node: Node, ways: Mapping[str, float]) -> dict[int, float]:
    """By how much the parts of a `shard_map` are split.

    Args:
        node: the `shard_map`.
        ways: by how much its factors are split.
    """
    count = len(node.attr(PARTS)[2]) if node.has_attr(PARTS) else 0  # type: ignore[index, arg-type]
    return {k: ways.get(part_name(k), 1.0) for k in range(count)}
