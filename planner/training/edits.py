"""What changes in a loss where it runs on a part of the batch, so that it stays the whole's.

A loss traced at the size of a part computes other things than a slice of what the whole batch
gives: numbers that tell the batch size, random numbers, positions, statistics. Each such place is
noted here; `planner.training.sliced_program` runs the program with these notes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Of an equation: its numbers in the jaxprs around it, and the names of what they are called by.
Place = tuple[int | str, ...]
Value = tuple[Place, int]  # an operand, or a result, of an equation


def body_name(op: str, number: int) -> str:
    """What a place calls a body of an op."""
    return f"while body {number}" if op == "while" else f"body {number}"


@dataclass(frozen=True, slots=True)
class Change:
    """What an operand becomes.

    kind: number (of the whole batch, in `value`); share (1/m of what all parts have alike);
        position (of an example: in the batch, not in the part).
    """

    kind: str
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Draw:
    """Random numbers that all examples draw together, of which a part takes its own.

    dim: of the results, over which the examples run.
    outer, inner: how often they run over all examples, and how many consecutive entries belong
        to one.
    """

    dim: int
    outer: int
    inner: int


SHARE, POSITION = Change("share"), Change("position")


@dataclass(frozen=True, slots=True)
class Called:
    """Shares of the operands and results of a call with a derivative of its own.

    Those of what nothing reads are None.
    """

    operands: tuple[Any, ...]
    results: tuple[Any, ...]


@dataclass
class Edits:
    """Notes of one analysis.

    operands: of equations, and what they become.
    ends: the same of results of bodies.
    draws: equations that draw.
    given: results that are computed on the whole batch before, and the dimension of their
        examples; None if they have none.
    sums: results that are sums over examples and enter what is computed once at the end.
    inner: what is known of how draws run over the examples.
    called: calls with derivatives of their own in which something changes, and what they are
        called with.
    rules: of these, what their derivatives become.
    telling: calls whose derivatives tell the batch size.
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
        """Drops what was noted inside an equation."""
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
