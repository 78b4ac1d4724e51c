"""What values of a program have to do with orders in which it sorts rows."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Final

from ir import Literal, lookup
from ir.analysis import FlatOp, FlatProgram, operand_types

from . import pointwise
from .pointwise import Pointwise
from .value_numbers import ValueNumbers

MOST_GROUPS: Final = 1024  # of which counts are recognised


@dataclass(frozen=True)
class Sorted:
    """Rows in an order, or places in it.

    root: the sort, through all loops that its order passes.
    order, key: the order and the numbers that were sorted, in this iteration of these loops.
    dim: dimension of the rows; -1 for places.
    lifted: dimensions of stacks before it.
    """

    root: Hashable
    order: Hashable
    key: Hashable
    dim: int
    lifted: int = 0

    @property
    def source(self) -> Hashable:
        """What whole numbers among them are functions of."""
        return ("places", self.order) if self.dim < 0 else self.order


@dataclass(frozen=True)
class Counts:
    """How many rows each group has, by the numbers that are sorted."""

    key: Hashable
    lifted: int = 0


Known = Sorted | Counts | None


@dataclass
class Values:
    """What is known of values; ops say it of their results.

    keys: numbers of the values that are sorted.
    known: rows in an order, places in it and counts.
    same: dimensions along which all elements are equal.
    functions: values as functions of the numbers that are sorted, or of an order.
    """

    flat: FlatProgram
    numbers: ValueNumbers
    keys: set[int]
    known: dict[int, Known] = field(default_factory=dict[int, Known])
    same: dict[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    functions: dict[int, Pointwise | None] = field(default_factory=dict[int, Pointwise | None])

    def of(self, v: int | Literal) -> Known:
        """What a value is."""
        if isinstance(v, Literal):
            return None
        if v not in self.known:
            self.known[v] = self._entered(v)
        return self.known[v]

    def _entered(self, v: int) -> Known:
        """What a port is, by what enters it."""
        if v in self.flat.stacked:
            port = self.of(self.flat.stacked[v])
            return None if port is None else replace(port, lifted=port.lifted + 1)
        link = self.numbers.only_link(v)
        if link is None:
            return None
        found = self.of(link.source)
        if found is None or not link.lift:
            return found
        if not found.lifted:
            return None  # a row at a time: `_leaves` keeps the order
        sliced = self.numbers.sliced(found.key, link.site.place)
        if isinstance(found, Counts):
            return Counts(sliced, found.lifted - 1)
        order = self.numbers.sliced(found.order, link.site.place)
        return replace(found, key=sliced, order=order, lifted=found.lifted - 1)

    def function(self, v: int | Literal) -> Pointwise | None:
        """A value as a function of the numbers that are sorted, or of an order."""
        if isinstance(v, Literal):
            return pointwise.of_literal(v)
        if v not in self.functions:
            self.functions[v] = self._entering_function(v)
        return self.functions[v]

    def _entering_function(self, v: int) -> Pointwise | None:
        type_ = self.flat.values[v].type
        if self.is_key(v) and self.of(v) is None:
            table = pointwise.keys_to_try(type_.dtype, MOST_GROUPS)
            return Pointwise(table, ("key", self.numbers.of(v)), 0, v)
        if v in self.flat.stacked:
            # no op takes a stack of rows for a function of anything
            rows = isinstance(self.of(v), Sorted)
            return self.function(self.flat.stacked[v]) if rows else None
        link = self.numbers.only_link(v)
        if link is None:
            return None
        found = self.function(link.source)
        if found is None or not link.lift or found.source is None:
            return None if link.lift and found is not None else found
        before, known = self.of(link.source), self.of(v)
        if not isinstance(before, Sorted) or not isinstance(known, Sorted):
            return None
        # what a loop takes of a stack is a function of the order of the same iteration
        return replace(found, source=known.source) if found.source == before.source else None

    def same_of(self, op: FlatOp) -> frozenset[int]:
        """Dimensions along which all elements of an op's results are equal."""
        node = op.node
        if node.op == "broadcast_in_dim":
            places = node.attr("broadcast_dimensions")
            assert isinstance(places, tuple)
            shape = operand_types(self.flat, op)[0].shape if op.inputs else ()
            apart = {
                place
                for d, (place, size) in enumerate(zip(places, shape, strict=True))
                if size > 1 and not self.same_along(op.inputs[0], d)
            }
            return frozenset(range(node.outputs[0].rank)) - apart
        if lookup(node.op).family != "elementwise" or len(op.outputs) > 1:
            return frozenset()
        dims = range(node.outputs[0].rank)
        return frozenset(d for d in dims if all(self.same_along(v, d) for v in op.inputs))

    def same_along(self, v: int | Literal, dim: int) -> bool:
        """Whether all elements of a value along a dimension are equal."""
        if isinstance(v, Literal) or not self.flat.values[v].type.rank:
            return True
        function = self.function(v)
        return dim in self.same.get(v, ()) or (function is not None and function.same_along(dim))

    def is_key(self, v: int) -> bool:
        """Whether a value is sorted."""
        return self.numbers.of(v) in self.keys and self.flat.values[v].type.rank == 1
