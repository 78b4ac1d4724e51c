"""A row of the catalogue as a pattern for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..catalogue import Row
from ..ops import OPS
from ..term import Term
from ..text import parse_term

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
        """Axes of the variables whose rank the row does not give."""
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
        ops = [OPS[t.kind] for t in (*self.parts(self.left), *self.parts(self.right)) if t.kind]
        return all(op.moves and not op.shape_only for op in ops)

    @cached_property
    def may_stack(self) -> bool:
        """Whether parts of equal shape may be joined along a new dimension."""
        forms = [OPS[term.kind].form for term in self.parts(self.right) if term.kind]
        joins = {form.joins for form in forms if form is not None}
        return True in joins and False not in joins

    @cached_property
    def term_ranks(self) -> dict[Term, int]:
        """Axes of every term of the left side."""
        found: dict[Term, int] = {}
        for term in self.parts(self.left):
            found[term] = _rank_of(term, found, self.ranks)
        return found

    @staticmethod
    def parts(terms: Iterable[Term]) -> Iterator[Term]:
        """All subterms, operands first."""
        for term in terms:
            yield from Pattern.parts(term.args)
            yield term

    @cached_property
    def left(self) -> tuple[Term, ...]:
        return tuple(_numbered(parse_term(part)) for part in self.row.left.split(";"))

    @cached_property
    def right(self) -> tuple[Term, ...]:
        return tuple(_numbered(parse_term(part)) for part in self.row.right.split(";"))


def _rank_of(term: Term, known: Mapping[Term, int], ranks: Mapping[str, int]) -> int:
    if not term.kind:
        return ranks[term.name]
    op = OPS[term.kind]
    return op.dims if op.dims is not None else known[term.args[op.like]] - op.fewer


def _numbered(term: Term) -> Term:
    """The term with numbers for letters."""
    params = tuple((key, str(_AXES.get(value, value))) for key, value in term.params)
    return Term(term.kind, term.name, params, tuple(map(_numbered, term.args)), term.part)
