"""Classes of terms that are proved or derived equal, or follow by replacing a part by an equal one.

An orbit is a class together with all that differ from it by names of inputs only; one term of it
is kept with its value. A term's normal form has the least term of its class for every part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from ..term import Term
from .limits import LIMITS
from .values import Renamings, Value, fingerprints

# A class: its fingerprint, and its number among unequal classes of that fingerprint.
Class = tuple[int, int]

T = TypeVar("T")


def _keep(table: dict[Term, T], term: Term, value: T) -> None:
    if len(table) >= LIMITS.cached:
        table.clear()
    table[term] = value


@dataclass(eq=False)
class Orbit:
    """A term with inputs in their own order, its value, and the terms found equal to it.

    members: each with the renaming that makes it of `term`.
    """

    term: Term
    size: int
    prints: tuple[int, ...]
    number: int
    members: list[tuple[Term, int]] = field(default_factory=list[tuple[Term, int]])
    value: Value | None = None

    def class_of(self, renaming: int) -> Class:
        return self.prints[renaming], self.number


@dataclass
class Classes:
    """All orbits so far."""

    renamings: Renamings
    orbits: list[Orbit] = field(default_factory=list[Orbit])
    _buckets: dict[int, list[Orbit]] = field(default_factory=dict[int, list[Orbit]])
    _home: dict[Term, tuple[Orbit, int]] = field(default_factory=dict[Term, tuple[Orbit, int]])
    _least: dict[Class, Term] = field(default_factory=dict[Class, Term])
    _where: dict[Class, tuple[Orbit, int]] = field(default_factory=dict[Class, tuple[Orbit, int]])
    # Caches: the class of a term never changes once it is known.
    _classes: dict[Term, Class] = field(default_factory=dict[Term, Class])
    _normal: dict[Term, Term] = field(default_factory=dict[Term, Term])
    _known: dict[Class, tuple[int, list[Term]]] = field(
        default_factory=dict[Class, tuple[int, list[Term]]]
    )

    def new_orbit(self, term: Term, size: int, value: Value) -> Orbit:
        """An orbit that is not yet in any table."""
        prints = fingerprints(value, self.renamings, self.renamings.order(term))
        number = len(self._buckets.get(min(prints), ()))
        return Orbit(term, size, prints, number, [(term, 0)], value)

    def add(self, orbit: Orbit) -> None:
        self.orbits.append(orbit)
        self._buckets.setdefault(min(orbit.prints), []).append(orbit)
        if orbit.term.kind:
            self._home[orbit.term] = (orbit, 0)
        for i in range(len(orbit.prints)):
            self._where.setdefault(orbit.class_of(i), (orbit, i))

    def join(self, term: Term, orbit: Orbit, renaming: int) -> None:
        """Says that a term equals the orbit's after a renaming."""
        orbit.members.append((term, renaming))
        self._home[term] = (orbit, renaming)

    def alike(self, prints: tuple[int, ...]) -> Iterator[tuple[Orbit, int]]:
        """Orbits of equal fingerprint, each with the renaming that makes it equal."""
        for orbit in self._buckets.get(min(prints), ()):
            if prints[0] in orbit.prints:
                yield orbit, orbit.prints.index(prints[0])

    def least(self, found: Class) -> Term:
        """The term of a class whose inputs are used in the least order."""
        if found not in self._least:
            orbit, _ = self._where[found]
            numbers = (i for i, each in enumerate(orbit.prints) if each == found[0])
            terms = [self.renamings.renamed(orbit.term, i) for i in numbers]
            self._least[found] = min(terms, key=self.renamings.order)
        return self._least[found]

    def class_of(self, term: Term) -> Class | None:
        """The class of a term whose arguments are normal; None if it is not known."""
        if not term.kind:
            return None
        if term in self._classes:
            return self._classes[term]
        renaming = self.renamings.to_canonical(self.renamings.order(term))
        home = self._home.get(self.renamings.renamed(term, renaming))
        if home is None:
            return None
        orbit, made = home
        back = self.renamings.inverse[renaming]
        found = orbit.class_of(self.renamings.after[back][made])
        _keep(self._classes, term, found)
        return found

    def normal(self, term: Term) -> Term:
        """The term with the least equal one for each part that is known, itself included."""
        held = self.normal_parts(term)
        found = self.class_of(held)
        return held if found is None else self.least(found)

    def normal_parts(self, term: Term) -> Term:
        """The term with normal arguments."""
        args = tuple(map(self.normal, term.args))
        return term if args == term.args else Term(term.kind, "", term.params, args, term.part)

    def members(self, term: Term) -> list[Term]:
        """Terms equal to a normal one, itself first."""
        found = self.class_of(term)
        if found is None:
            return [term]
        orbit, _ = self._where[found]
        count = len(orbit.members)
        if found not in self._known or self._known[found][0] != count:
            terms = {term: None}
            numbers = [i for i, each in enumerate(orbit.prints) if each == found[0]]
            for other, made in orbit.members:
                for i in numbers:
                    number = self.renamings.after[i][self.renamings.inverse[made]]
                    terms.setdefault(self.normal_parts(self.renamings.renamed(other, number)))
                if len(terms) >= LIMITS.members:
                    break
            self._known[found] = (count, list(terms)[: LIMITS.members])
        return self._known[found][1]
