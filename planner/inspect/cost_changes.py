"""Which collectives make the difference between two plans of one program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..common.units_text import seconds_text

LEAST_SHARE = 0.02  # of the largest change; smaller ones are not named


class Costly(Protocol):
    """A collective with its cause."""

    @property
    def kind(self) -> str: ...
    @property
    def cause(self) -> str: ...
    @property
    def exposed_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Change:
    """A collective of one cause in two plans.

    a_s, b_s: exposed seconds of all its runs in a step of each plan.
    """

    kind: str
    cause: str
    a_s: float
    b_s: float

    @property
    def added_s(self) -> float:
        """What the second plan spends more."""
        return self.b_s - self.a_s

    def __str__(self) -> str:
        sign = "+" if self.added_s >= 0 else "-"
        return f"{sign}{seconds_text(abs(self.added_s))} {self.kind} for {self.cause}"


def changes(a: Iterable[Costly], b: Iterable[Costly], most: int) -> tuple[Change, ...]:
    """The collectives whose exposed seconds differ most, the largest difference first."""
    sums: dict[tuple[str, str], list[float]] = {}
    for side, rows in enumerate((a, b)):
        for row in rows:
            sums.setdefault((row.kind, row.cause), [0.0, 0.0])[side] += row.exposed_s
    found = [Change(kind, cause, *pair) for (kind, cause), pair in sums.items()]
    found.sort(key=lambda c: (-abs(c.added_s), c.kind, c.cause))
    least = LEAST_SHARE * abs(found[0].added_s) if found else 0.0
    return tuple(c for c in found[:most] if abs(c.added_s) > least)
