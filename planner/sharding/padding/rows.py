"""The padded dimensions of a plan: rows of its file, and the program that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.trace import Traced

from ...common.errors import PlanError
from ...files.program_plan import PaddedRow
from .classified import Classified, Padding
from .edit import padded


def as_padded(traced: Traced, rows: Sequence[PaddedRow], where: str) -> Traced:
    """A traced function with the dimensions padded that a plan pads, one row after the other.

    Raises:
        PlanError: if the program does not have a dimension of a row.
    """
    for row in rows:
        known = Classified(traced.graph)
        value = known.flat.names.get((row.place, row.number))
        shape = () if value is None else known.flat.values[value].type.shape
        if row.dim >= len(shape) or shape[row.dim] != row.was:
            raise PlanError(
                f"it pads dimension {row.dim} of value {row.number} from {row.was} to {row.size}, "
                f"here the shape is {shape}", kind="differs", where=where,
                remedy="plan this function anew",
            )  # fmt: skip
        padding = Padding(row.place, row.number, row.dim, row.size, row.parts)
        traced = replace(traced, program=padded(traced.program, padding, known))
    return traced
