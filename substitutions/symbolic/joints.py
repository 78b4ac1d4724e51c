"""Where dimensions of a rule's tensors are joined from parts, with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..effort import LIMITS
from ..graph import Op, Ref, Side
from .expr import ZERO, Expr
from .solve import UndecidedError
from .types import Type, Typing, resolved

Joints = tuple[tuple[Expr, ...], ...]


def ordered(places: Sequence[Expr]) -> tuple[Expr, ...]:
    """Places in increasing order, each once.

    Raises:
        UndecidedError: if the order depends on the sizes, or there are too many.
    """
    if len(places) > LIMITS.joints:
        raise UndecidedError(f"{len(places)} joined parts")
    found: list[Expr] = []
    for place in places:
        at = 0
        for other in found:
            sign = (place - other).sign()
            if sign is None:
                raise UndecidedError(f"whether {place} is below {other}")
            if sign == 0:
                at = -1
                break
            at += sign == 1
        if at >= 0:
            found.insert(at, place)
    return tuple(found)


def segments(joints: Sequence[Expr], size: Expr) -> list[tuple[Expr, Expr]]:
    """(start, length) of the parts of a dimension between its joints."""
    ends = [*joints, size]
    starts = [ZERO, *joints]
    return [(a, b - a) for a, b in zip(starts, ends, strict=True)]


@dataclass
class Parts:
    """Types of one side, once all are known, and the places where dimensions are joined."""

    typing: Typing
    name: str
    side: Side
    joints_of: Mapping[str, JointsOf]
    _types: dict[Ref, Type] = field(default_factory=dict[Ref, Type])
    _joints: dict[Ref, Joints] = field(default_factory=dict[Ref, Joints])

    def type(self, ref: Ref) -> Type:
        if ref not in self._types:
            self._types[ref] = resolved(self.typing.solver, self.typing.of(self.name, ref))
        return self._types[ref]

    def joints(self, ref: Ref) -> tuple[tuple[Expr, ...], ...]:
        """For each data dimension, where concatenations below join parts."""
        if ref not in self._joints:
            if ref.op < 0:
                found = tuple(() for _ in self.type(ref).dims)
            else:
                op = self.side[ref.op]
                every = self.joints_of[op.kind](self, op, ref)
                found = tuple(ordered(places) for places in every)
            self._joints[ref] = found
        return self._joints[ref]

    def axis(self, op: Op) -> int:
        """The data dimension that an op's `axis` names."""
        return op["axis"] - 1 if self.typing.parallel else op["axis"]

    def part(self, op: Op, output: int) -> tuple[Expr, Expr]:
        """Start and size of a part of a split."""
        whole = self.typing.of(self.name, op.inputs[0]).dims[self.axis(op)]
        cut = self.typing.solver.resolve(self.typing.cut_of(whole).at)
        size = self.typing.solver.resolve(whole.size)
        return (ZERO, cut) if output == 0 else (cut, size - cut)


def pointwise_joints(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    """Joints of ops whose results have the dimensions of their operands, or none."""
    if not op.inputs:
        return [[] for _ in m.type(ref).dims]
    tensors = [r for r in op.inputs if m.type(r).dims]
    columns = zip(*(m.joints(r) for r in tensors), strict=True)
    return [[place for places in column for place in places] for column in columns]


JointsOf = Callable[[Parts, Op, Ref], list[list[Expr]]]
