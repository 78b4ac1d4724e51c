"""Values of one side of a rule, read at symbolic positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..rule import Op, Ref
from .breaks import Parts
from .expr import ONE, Expr
from .values import Factor, Index, Labels, Value, constant, times

Indices = tuple[Index, ...]
MONOMIALS = 8  # are made with as much work as an element is read


@dataclass(frozen=True, slots=True)
class Meaning:
    """Values of one side; `values` is what each op means."""

    parts: Parts
    labels: Labels
    values: Mapping[str, ValueOf]

    def at(self, ref: Ref, replica: Expr, index: Indices) -> Value:
        """The element at a position.

        Raises:
            UndecidedError: if too many are read: what is read twice is written out twice.
        """
        self.labels.spend(1)
        if ref.op < 0:
            places = (replica, *(i.at for i in index))
            return times(constant(ONE), (Factor("in", places, f"x{ref.name}"),))
        op = self.parts.side[ref.op]
        found = self.values[op.kind](self, op, ref, replica, index)
        self.labels.spend(len(found) // MONOMIALS)
        return found


ValueOf = Callable[[Meaning, Op, Ref, Expr, Indices], Value]
