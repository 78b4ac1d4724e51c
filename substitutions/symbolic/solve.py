"""Equations and divisibility between sizes and degrees, solved by substitution.

What the source demands is a fact: it holds wherever the rule matches. What the target demands
beyond that is a condition of the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ..effort import Effort
from .expr import ONE, Atom, Expr, as_expr, quotient, substitute, symbol

# Shapes of constants such as the identity matrix may be chosen freely, to suit the rest.
FREE = "?"


class IllTypedError(Exception):
    """No sizes and degrees make the graph well-typed."""


class UndecidedError(Exception):
    """The prover does not know; nothing may be concluded."""


@dataclass
class Solver:
    """Equations in solved form, and what could not be solved.

    conditions: equations and divisibilities of the target that the source does not imply.
    nonnegative: expressions that are at least 0, as an image less a window is.
    effort: the steps that are left for the rule.
    unanswered: questions of divisibility that were given up.
    """

    values: dict[Atom, Expr] = field(default_factory=dict[Atom, Expr])
    divisible: list[tuple[Expr, Expr]] = field(default_factory=list[tuple[Expr, Expr]])
    nonnegative: list[Expr] = field(default_factory=list[Expr])
    pending: list[Expr] = field(default_factory=list[Expr])
    at_least_2: set[Atom] = field(default_factory=set[Atom])
    conditions: list[str] = field(default_factory=list[str])
    recording: bool = False
    effort: Effort = field(default_factory=Effort)
    unanswered: int = 0
    implied: Callable[[Solver, Expr, Expr], bool] | None = None
    _fresh: int = 0

    def resolve(self, expr: Expr) -> Expr:
        return substitute(expr, self.values)

    def fresh(self, stem: str) -> Expr:
        self._fresh += 1
        return symbol(f"{stem}'{self._fresh}")

    def equal(self, a: Expr | int, b: Expr | int) -> None:
        """Demands a = b.

        Raises:
            IllTypedError: if that is impossible.
        """
        left, right = self.resolve(as_expr(a)), self.resolve(as_expr(b))
        difference = left - right
        if not difference.terms:
            return
        if self._never_zero(difference):
            raise IllTypedError(f"{left} is not {right}")
        common = _common_factor(difference)
        reduced = quotient(difference, common) or difference
        one = _product_is_one(reduced)
        free = self._solve_one(reduced, free_only=True)
        if not free and self.recording:
            self._record(_equation(as_expr(a), as_expr(b)))
        if free:
            return
        if one:
            for atom in one:
                if atom in self.at_least_2:
                    raise IllTypedError(f"{left} is not {right}")
                self._bind(atom, ONE)
        elif not self._solve_one(reduced, free_only=False):
            self.pending.append(reduced)

    def adapt(self, a: Expr, b: Expr) -> None:
        """Makes a = b if shapes of constants can be chosen so; else does nothing."""
        difference = self.resolve(a) - self.resolve(b)
        if difference.terms and not self._never_zero(difference):
            reduced = quotient(difference, _common_factor(difference)) or difference
            self._solve_one(reduced, free_only=True)

    def divides(self, part: Expr, whole: Expr) -> None:
        """Demands that part divides whole."""
        d, n = self.resolve(part), self.resolve(whole)
        if self._known_divisor(d, n):
            return
        if n.constant is not None and d.constant is not None:
            raise IllTypedError(f"{d} does not divide {n}")
        if self.recording:
            if self.implied is not None and self.implied(self, d, n):
                return
            self._record(f"{part} divides {whole}")
        self.divisible.append((d, n))

    def at_least(self, a: Expr, b: Expr) -> None:
        """Demands a >= b."""
        difference = self.resolve(a) - self.resolve(b)
        if difference.sign() == -1:
            raise IllTypedError(f"{a} is less than {b}")
        known = (difference - self.resolve(fact) for fact in self.nonnegative)
        if (difference + 1).sign() == 1 or any((more + 1).sign() == 1 for more in known):
            return
        if self.recording:
            self._record(f"{a} is at least {b}")
        self.nonnegative.append(difference)

    def multiple(self, expr: Expr, of: Expr) -> Expr:
        """Demands that `of` divides expr and returns the quotient; a free name is replaced."""
        n, d = self.resolve(expr), self.resolve(of)
        found = quotient(n, d)
        if found is not None and _whole(found):
            return found
        if n.constant is not None and d.constant is not None:
            raise IllTypedError(f"{d} does not divide {n}")
        if self.recording and n != ONE:
            self._record(f"{of} divides {expr}")
        return self._factor(n, d)

    def _factor(self, n: Expr, d: Expr) -> Expr:
        """Quotient n / d for a name n, or names p*q = n and d, as new names that make it exact."""
        if n == ONE:
            self.equal(d, ONE)
            return ONE
        atoms = next(iter(n.terms)) if len(n.terms) == 1 else ()
        plain = all(not a.args and a not in self.at_least_2 for a in atoms)
        if not atoms or not plain or set(n.terms.values()) != {1}:
            raise UndecidedError(f"{d} divides {n}")
        if len(atoms) == 1:
            part = self.fresh(atoms[0].name)
            self._bind(atoms[0], part * d)
            return part
        divisor = next(iter(d.terms)) if len(d.terms) == 1 else ()
        if len(atoms) != 2 or len(divisor) != 1 or len({*atoms, *divisor}) != 3:
            raise UndecidedError(f"{d} divides {n}")
        # Four-number lemma: p*q = d*e exactly if p = a*b, q = c*f, d = b*f, e = a*c.
        names = [self.fresh(atom.name) for atom in (*atoms, *divisor, *divisor)]
        for atom, (i, j) in zip((*atoms, *divisor), ((0, 1), (2, 3), (1, 3)), strict=True):
            self._bind(atom, names[i] * names[j])
        return names[0] * names[2]

    def _known_divisor(self, d: Expr, n: Expr) -> bool:
        if d == ONE:
            return True
        found = quotient(n, d)
        if found is not None and _whole(found):
            return True
        for known, whole in self.divisible:
            size = self.resolve(whole)
            factor = quotient(self.resolve(known), d)
            times = quotient(n, size)
            if factor is not None and times is not None and _whole(factor) and _whole(times):
                return True
        return False

    def _never_zero(self, difference: Expr) -> bool:
        twos = {atom: symbol(atom.name) + 1 for atom in self.at_least_2}
        return bool(substitute(difference, twos).sign())

    def _solve_one(self, difference: Expr, *, free_only: bool) -> bool:
        """Solves for a name that occurs once, alone, with coefficient 1 or -1."""
        candidates = [
            (m[0], c)
            for m, c in difference.terms.items()
            if len(m) == 1 and c in (1, -1) and not m[0].args and m[0] not in self.at_least_2
        ]
        candidates.sort(key=lambda item: (not item[0].name.startswith(FREE), item[0].name))
        for atom, c in candidates:
            if free_only and not atom.name.startswith(FREE):
                continue
            rest = (difference - Expr({(atom,): c})) * -c
            if atom not in rest.atoms() and rest.terms and rest.sign() != -1:
                self._bind(atom, rest)
                return True
        return False

    def _bind(self, atom: Atom, value: Expr) -> None:
        update = {atom: value}
        self.values = {name: substitute(old, update) for name, old in self.values.items()} | update
        self.divisible = [(substitute(a, update), substitute(b, update)) for a, b in self.divisible]
        self.nonnegative = [substitute(fact, update) for fact in self.nonnegative]
        waiting, self.pending = self.pending, []
        for difference in waiting:
            self.equal(substitute(difference, update), 0)

    def _record(self, text: str) -> None:
        if text not in self.conditions and FREE not in text:
            self.conditions.append(text)


def _equation(a: Expr, b: Expr) -> str:
    """The equation with a lone number last."""
    return f"{a} = {b}" if a.constant is None else f"{b} = {a}"


def _whole(expr: Expr) -> bool:
    return all(c == int(c) for c in expr.terms.values())


def _common_factor(expr: Expr) -> Expr:
    monomials = list(expr.terms)
    common = list(monomials[0])
    for monomial in monomials[1:]:
        left, kept = list(monomial), list[Atom]()
        for atom in common:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        common = kept
    number = math.gcd(*(int(c) for c in expr.terms.values() if c == int(c)))
    return Expr({tuple(common): number if _whole(expr) else 1})


def _product_is_one(difference: Expr) -> tuple[Atom, ...]:
    """The names of a product that equals 1, if the equation says just that."""
    terms = dict(difference.terms)
    constant = terms.pop((), 0)
    if len(terms) != 1 or constant not in (1, -1):
        return ()
    ((monomial, c),) = terms.items()
    plain = all(not atom.args for atom in monomial)
    return tuple(dict.fromkeys(monomial)) if plain and c == -constant else ()
