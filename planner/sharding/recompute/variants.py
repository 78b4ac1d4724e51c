"""A traced program with another choice of what is computed again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ir.trace import Traced

from ...files.program_plan import RecomputedRow
from .again import with_recompute
from .keep import keeping_all
from .saved import Key

Rows = tuple[RecomputedRow, ...]


@dataclass(frozen=True)
class Variant:
    """A program as it is planned.

    traced: the program.
    rows: what is computed again; None if the program is as it was written.
    """

    traced: Traced
    rows: Rows | None = None


def variant_of(kept: Traced, values: Iterable[Key]) -> Variant:
    """A program that keeps everything, with some values computed again."""
    rows = rows_of(values)
    return Variant(applied(kept, rows), rows)


def kept_by(traced: Traced) -> Traced:
    """The traced function as the program that keeps everything."""
    return replace(traced, program=keeping_all(traced.program))


def as_planned(traced: Traced, rows: Rows | None) -> Traced:
    """A traced function with what a plan says is computed again."""
    return traced if rows is None else applied(kept_by(traced), rows)


def applied(kept: Traced, rows: Rows) -> Traced:
    """A program that keeps everything, with the values of some rows computed again."""
    values = [(row.place, v) for row in rows for v in row.numbers]
    return replace(kept, program=with_recompute(kept.program, values))


def rows_of(values: Iterable[Key]) -> Rows:
    """The rows of a plan file, in order."""
    ordered: Sequence[Key] = sorted(values)
    return tuple(
        RecomputedRow(place, tuple(v for _, v in group))
        for place, group in groupby(ordered, key=lambda key: key[0])
    )
