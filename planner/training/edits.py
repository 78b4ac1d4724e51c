"""Edits of a loss that runs on a part of the batch, so that parts add up to the whole.

Traced at the size of a part, a loss may compute something else than a slice of the whole batch's
values: through numbers that depend on the batch size, random numbers, positions and statistics.
    Each
such place is noted here; `planner.training.sliced_program` runs the program with these notes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Place of an equation: its number in each enclosing jaxpr, and the names under which these are
# called.
Place = tuple[int | str, ...]
Value = tuple[Place, int]  # an operand, or a result, of an equation


def body_name(op: str, number: int) -> str:
    """Name of an op's body within a place."""
    return f"while body {number}" if op == "while" else f"body {number}"


@dataclass(frozen=True, slots=True)
class Change:
    """The new value of an operand.

    kind: number (that of the whole batch, `value`); share (1/m of a value that is the same for all
        m parts); position (of an example in the batch instead of in the part).
    """

    kind: str
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Draw:
    """Random numbers drawn for all examples together, of which a part takes its own.

    dim: dimension of the results over which the examples run.
    outer, inner: entries per example along it: repetitions of the run over all examples, and
        consecutive entries of one example; size = outer * examples * inner.
    """

    dim: int
    outer: int
    inner: int


SHARE, POSITION = Change("share"), Change("position")


@dataclass(frozen=True, slots=True)
class Called:
    """Shares of the operands and results of a call with a custom derivative.

    None for values that nothing reads.
    """

    operands: tuple[Any, ...]
    results: tuple[Any, ...]


@dataclass
class Edits:
    """Edits noted by one analysis.

    operands: (equation, operand) -> change.
    ends: (body, result) -> change.
    draws: equation -> its random numbers.
    given: results computed beforehand on the whole batch -> dimension of their examples; None if
        they have none.
    sums: results that are sums over examples and inputs of the computation after all parts.
    inner: consecutive entries of one example in a draw, as far as known.
    called: calls with custom derivatives that change, with the shares of operands and results.
    rules: edits of the derivatives of these calls.
    telling: calls whose derivatives depend on the batch size.
    """

    operands: dict[Value, Change] = field(default_factory=dict[Value, Change])
    ends: dict[Value, Change] = field(default_factory=dict[Value, Change])
    draws: dict[Place, Draw] = field(default_factory=dict[Place, Draw])
    given: dict[Value, int | None] = field(default_factory=dict[Value, "int | None"])
    sums: dict[Value, None] = field(default_factory=dict[Value, None])
    inner: dict[Place, int] = field(default_factory=dict[Place, int])
    called: dict[Place, Called] = field(default_factory=dict[Place, Called])
    rules: dict[Place, Any] = field(default_factory=dict[Place, Any])

    telling: tuple[Place, ...] = ()

    def forget(self, place: Place) -> None:
        """Drops the notes inside an equation."""
        n = len(place)
        for notes in (self.operands, self.ends, self.given, self.sums):
            for key in [key for key in notes if key[0][:n] == place]:
                del notes[key]
        for notes in (self.draws, self.called):
            for key in [key for key in notes if key[:n] == place]:
                del notes[key]

    def changes_in(self, place: Place) -> bool:
        """Whether anything changes inside a call."""
        n = len(place)
        values = (*self.operands, *self.ends)
        return any(p[:n] == place for p in (*self.draws, *(p for p, _ in values)))

    def around(self) -> frozenset[Place]:
        """Places of equations inside which something changes, or a sum is made."""
        values = (*self.operands, *self.ends, *self.given, *self.sums)
        inner = [*self.draws, *(p for p, _ in values)]
        return frozenset(p[:n] for p in inner for n in range(1, len(p)))

    def around_sums(self) -> frozenset[Place]:
        """Places of equations inside which a sum is made that ends a part."""
        return frozenset(p[:n] for p, _ in self.sums for n in range(1, len(p)))
