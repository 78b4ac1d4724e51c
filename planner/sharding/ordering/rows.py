"""The order of a plan's sequences: rows of its file, and the program that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.trace import Traced

from ...files.program_plan import OrderedRow
from ..padding.rows import with_dimension
from .edit import Order, ordered


def as_ordered(traced: Traced, rows: Sequence[OrderedRow], where: str) -> Traced:
    """A traced function with the sequences in zigzag that a plan has so, one row after the other.

    Raises:
        PlanError: if the program does not have a dimension of a row.
    """
    for row in rows:
        what = f"it orders dimension {row.dim} of value {row.number}, of {row.was} elements"
        known = with_dimension(traced, row, what, where)
        order = Order(row.place, row.number, row.dim, row.parts)
        traced = replace(traced, program=ordered(traced.program, order, known))
    return traced
