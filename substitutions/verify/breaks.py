"""Where dimensions of a rule's tensors are joined from parts, with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..rule import Op, Ref, Side
from .expr import ZERO, Expr
from .solve import UndecidedError
from .types import Type, Typing, resolved

Breaks = tuple[tuple[Expr, ...], ...]

MOST_PLACES = 128


def ordered(places: Sequence[Expr]) -> tuple[Expr, ...]:
    """Places in increasing order, each once.

    Raises:
        UndecidedError: if the order depends on the sizes, or there are too many.
    """
    if len(places) > MOST_PLACES:
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


def segments(breaks: Sequence[Expr], size: Expr) -> list[tuple[Expr, Expr]]:
    """(start, length) of the parts of a dimension between its breaks."""
    ends = [*breaks, size]
    starts = [ZERO, *breaks]
    return [(a, b - a) for a, b in zip(starts, ends, strict=True)]


@dataclass
class Parts:
    """Types of one side, once all are known, and the places where dimensions are joined."""

    typing: Typing
    name: str
    side: Side
    more: Mapping[str, BreaksOf]
    _types: dict[Ref, Type] = field(default_factory=dict[Ref, Type])
    _breaks: dict[Ref, Breaks] = field(default_factory=dict[Ref, Breaks])

    def type(self, ref: Ref) -> Type:
        if ref not in self._types:
            self._types[ref] = resolved(self.typing.solver, self.typing.of(self.name, ref))
        return self._types[ref]

    def breaks(self, ref: Ref) -> tuple[tuple[Expr, ...], ...]:
        """For each data dimension, where concatenations below join parts."""
        if ref not in self._breaks:
            if ref.op < 0:
                found = tuple(() for _ in self.type(ref).dims)
            else:
                op = self.side[ref.op]
                find = self.more.get(op.kind) or _BREAKS.get(op.kind, _pointwise_breaks)
                found = tuple(ordered(places) for places in find(self, op, ref))
            self._breaks[ref] = found
        return self._breaks[ref]

    def axis(self, op: Op) -> int:
        """The data dimension that an op's `axis` names."""
        return op["axis"] - 1 if self.typing.rule.parallel else op["axis"]

    def part(self, op: Op, output: int) -> tuple[Expr, Expr]:
        """Start and size of a part of a split."""
        whole = self.typing.of(self.name, op.inputs[0]).dims[self.axis(op)]
        cut = self.typing.solver.resolve(self.typing.cut_of(whole).at)
        size = self.typing.solver.resolve(whole.size)
        return (ZERO, cut) if output == 0 else (cut, size - cut)


def _pointwise_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    if not op.inputs:
        return [[] for _ in m.type(ref).dims]
    tensors = [r for r in op.inputs if m.type(r).dims]
    columns = zip(*(m.breaks(r) for r in tensors), strict=True)
    return [[place for places in column for place in places] for column in columns]


def _transpose_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    return [list(places) for places in reversed(m.breaks(op.inputs[0]))]


def _matmul_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    x, y = (m.breaks(r) for r in op.inputs)
    return [list(x[0]), list(y[1])]


def _linear_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    x, w = (m.breaks(r) for r in op.inputs)
    return [list(x[0]), list(w[0])]


def _conv_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    x, w = (m.breaks(r) for r in op.inputs)
    return [list(x[0]), list(w[0]), [], []]


def _window_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found = m.breaks(op.inputs[0])
    return [list(found[0]), list(found[1]), [], []]


def _concat_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found = _pointwise_breaks(m, op, ref)
    axis, start = m.axis(op), ZERO
    found[axis] = []
    for r in op.inputs:
        found[axis] += [start + place for place in m.breaks(r)[axis]]
        start = start + m.type(r).dims[axis].size
        found[axis].append(start)
    found[axis].pop()
    return found


def _split_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found = [list(places) for places in m.breaks(op.inputs[0])]
    axis = m.axis(op)
    start, size = m.part(op, ref.output)
    kept: list[Expr] = []
    for place in found[axis]:
        low, high = (place - start).sign(), (start + size - place).sign()
        if low is None or high is None:
            raise UndecidedError(f"whether {place} is in a part")
        if low == 1 and high == 1:
            kept.append(place - start)
    found[axis] = kept
    return found


BreaksOf = Callable[[Parts, Op, Ref], list[list[Expr]]]
_BREAKS: Mapping[str, BreaksOf] = {
    "transpose": _transpose_breaks,
    "matmul": _matmul_breaks,
    "linear": _linear_breaks,
    "conv": _conv_breaks,
    "avgpool": _window_breaks,
    "maxpool": _window_breaks,
    "enlarge": _window_breaks,
    "concat": _concat_breaks,
    "split": _split_breaks,
}
