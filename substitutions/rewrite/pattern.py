"""A row of the catalogue as a pattern for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..catalogue import Row
from ..text import Term, parse_term

_MOVES = ("concat", "gather", "split", "transpose")
# Letters of generic rows: all other dimensions form one more axis, the last.
_AXES = {"a": 0, "b": 1}


@dataclass(frozen=True)
class Pattern:
    """Both sides as terms, one for each output; axes are numbers.

    ranks: axes of each variable.
    """

    row: Row

    @property
    def name(self) -> str:
        return self.row.name

    @cached_property
    def rank(self) -> int:
        """Axes of a tensor of the row, if it says nothing else."""
        text = self.row.left + self.row.right
        letters = [name for name in _AXES if f"[{name}]" in text]
        return len(letters) + 1 if self.row.generic else 2

    @cached_property
    def ranks(self) -> dict[str, int]:
        known = dict.fromkeys("xyzuvw", self.rank) | {"s": 0, "t": 0}
        given = {n: self.rank - r if self.row.generic else r for n, r in self.row.ranks}
        return known | given

    @cached_property
    def moves(self) -> bool:
        """Whether it computes nothing: elements only change their places."""
        terms = [*self.left, *self.right]
        return all(kind in _MOVES for term in terms for kind in _kinds(term))

    @cached_property
    def left(self) -> tuple[Term, ...]:
        return tuple(_numbered(parse_term(part)) for part in self.row.left.split(";"))

    @cached_property
    def right(self) -> tuple[Term, ...]:
        return tuple(_numbered(parse_term(part)) for part in self.row.right.split(";"))


def _kinds(term: Term) -> Iterator[str]:
    if term.kind:
        yield term.kind
    for arg in term.args:
        yield from _kinds(arg)


def _numbered(term: Term) -> Term:
    """The term with numbers for letters."""
    params = tuple((key, str(_AXES.get(value, value))) for key, value in term.params)
    return Term(term.kind, term.name, params, tuple(map(_numbered, term.args)), term.part)


def axis_of(term: Term) -> int:
    """The axis that an op works on."""
    return int(dict(term.params)["axis"])
