"""Values of one side of a rule, read at symbolic positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..effort import COSTS
from ..graph import Op, Ref
from .expr import ONE, Expr
from .joints import Parts, ordered, segments
from .types import Dim
from .values import Factor, Index, Labels, Value, chunk, constant, times

Indices = tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Meaning:
    """Values of one side; `values` gives those of each op."""

    parts: Parts
    labels: Labels
    values: Mapping[str, ValueOf]

    def at(self, ref: Ref, replica: Expr, index: Indices) -> Value:
        """The element at a position.

        Raises:
            UndecidedError: if too many are read; an element that is read twice counts twice.
        """
        self.labels.spend(1)
        if ref.op < 0:
            places = (replica, *(i.at for i in index))
            return times(constant(ONE), (Factor("in", places, f"x{ref.name}"),))
        op = self.parts.side[ref.op]
        found = self.values[op.kind](self, op, ref, replica, index)
        self.labels.spend(len(found) // COSTS.monomials)
        return found


ValueOf = Callable[[Meaning, Op, Ref, Expr, Indices], Value]


def summed_over(
    m: Meaning, places: Sequence[Expr], size: Expr
) -> list[tuple[tuple[str, Expr], Index]]:
    """A label, with its size, and a position for each part of a dimension that is summed over.

    Args:
        m: where labels come from.
        places: where the dimension is joined, in any order.
        size: of the dimension.
    """
    found: list[tuple[tuple[str, Expr], Index]] = []
    for start, length in segments(ordered(places), size):
        name, label = m.labels.make(length)
        found.append(((name, length), Index(start + label, start, length)))
    return found


def chunk_of(i: Index, dim: Dim) -> Expr:
    """Which chunk of a dimension a position is in."""
    return chunk(i.at, dim.degree, dim.size)


def in_chunk(i: Index, dim: Dim, number: Expr) -> tuple[Factor, ...]:
    """1 where a position is in the chunk of that number; no factor where there is one chunk."""
    return () if dim.degree == ONE else (Factor("eq", (chunk_of(i, dim), number)),)
