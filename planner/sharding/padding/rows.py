"""The padded dimensions of a plan: rows of its file, and the program that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.trace import Traced

from ...common.errors import PlanError
from ...files.program_plan import OrderedRow, PaddedRow
from .classified import Classified, Padding
from .edit import padded


def as_padded(traced: Traced, rows: Sequence[PaddedRow], where: str) -> Traced:
    """A traced function with the dimensions padded that a plan pads, one row after the other.

    Raises:
        PlanError: if the program does not have a dimension of a row.
    """
    for row in rows:
        what = f"it pads dimension {row.dim} of value {row.number} from {row.was} to {row.size}"
        known = with_dimension(traced, row, what, where)
        padding = Padding(row.place, row.number, row.dim, row.size, row.parts)
        traced = replace(traced, program=padded(traced.program, padding, known))
    return traced


def with_dimension(
    traced: Traced, row: PaddedRow | OrderedRow, what: str, where: str
) -> Classified:
    """The classes of a traced function, which has the dimension of a row.

    Args:
        traced: the function.
        row: of a plan file.
        what: the edit in words, for the error.
        where: the plan, for the error.

    Raises:
        PlanError: if it does not have that dimension, in that size.
    """
    known = Classified(traced.graph)
    value = known.flat.names.get((row.place, row.number))
    shape = () if value is None else known.flat.values[value].type.shape
    if row.dim >= len(shape) or shape[row.dim] != row.was:
        raise PlanError(
            f"{what}, here the shape is {shape}", kind="differs", where=where,
            remedy="plan this function anew",
        )  # fmt: skip
    return known
