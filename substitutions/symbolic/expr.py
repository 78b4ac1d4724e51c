"""Polynomials over named positive integers: sizes, degrees and positions in tensors.

Division, chunk numbers and the like are atoms whose arguments are polynomials; they are simplified
where they are made. Equal text means equal for all values of the names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

Monomial = tuple["Atom", ...]
Number = int | Fraction


@dataclass(frozen=True, slots=True)
class Atom:
    """A name, or a function of polynomials that has no simpler form."""

    name: str
    args: tuple[Expr, ...] = ()
    text: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        inside = f"({', '.join(map(str, self.args))})" if self.args else ""
        object.__setattr__(self, "text", self.name + inside)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.text == other.text

    def __str__(self) -> str:
        return self.text


class Expr:
    """A polynomial, immutable; `terms` maps monomials (sorted atoms) to coefficients not 0."""

    __slots__ = ("_text", "terms")

    def __init__(self, terms: Mapping[Monomial, Number]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        self._text = ""

    @property
    def text(self) -> str:
        if not self._text:
            parts = sorted((_monomial_text(m), c) for m, c in self.terms.items())
            shown = " + ".join(_term_text(m, c) for m, c in parts) or "0"
            self._text = shown.replace("+ -", "- ")
        return self._text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Expr<{self.text}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.text)

    def __add__(self, other: Expr | int) -> Expr:
        terms = dict(self.terms)
        for m, c in as_expr(other).terms.items():
            terms[m] = terms.get(m, 0) + c
        return Expr(terms)

    def __neg__(self) -> Expr:
        return Expr({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Expr | int) -> Expr:
        return self + (-as_expr(other))

    def __mul__(self, other: Expr | Number) -> Expr:
        if not isinstance(other, Expr):
            return Expr({m: c * other for m, c in self.terms.items()})
        terms: dict[Monomial, Number] = {}
        for m, c in self.terms.items():
            for n, d in other.terms.items():
                key = _times(m, n)
                terms[key] = terms.get(key, 0) + c * d
        return Expr(terms)

    @property
    def constant(self) -> Number | None:
        """The value, if no name occurs."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and () in self.terms:
            return self.terms[()]
        return None

    def atoms(self) -> set[Atom]:
        """All atoms, those in arguments of atoms included."""
        found: set[Atom] = set()
        for monomial in self.terms:
            for atom in monomial:
                found.add(atom)
                for arg in atom.args:
                    found |= arg.atoms()
        return found

    def sign(self) -> int | None:
        """-1, 0 or 1 if that is the sign for all values of the names, which are at least 1.

        Sufficient only: None does not mean that the sign varies.
        """
        if not self.terms:
            return 0
        # The value where every name is 1, and every function has its least value.
        shifted = sum(c for m, c in self.terms.items() if not any(map(_may_be_zero, m)))
        rest = [c for m, c in self.terms.items() if m]
        if all(c >= 0 for c in rest) and shifted > 0:
            return 1
        if all(c <= 0 for c in rest) and shifted < 0:
            return -1
        return None


def _may_be_zero(atom: Atom) -> bool:
    return bool(atom.args) and atom.name != "ceil"


def _times(a: Monomial, b: Monomial) -> Monomial:
    if not a:
        return b
    if not b:
        return a
    return tuple(sorted((*a, *b), key=str))


def _monomial_text(monomial: Monomial) -> str:
    return "*".join(map(str, monomial))


def _term_text(monomial: str, c: Number) -> str:
    if not monomial:
        return str(c)
    return monomial if c == 1 else f"-{monomial}" if c == -1 else f"{c}*{monomial}"


ZERO = Expr({})
ONE = Expr({(): 1})


def as_expr(value: Expr | int) -> Expr:
    return value if isinstance(value, Expr) else Expr({(): value})


def symbol(name: str) -> Expr:
    return Expr({(Atom(name),): 1})


def call(name: str, *args: Expr) -> Expr:
    """A function atom, simplified where the rules below allow it."""
    simplify = _SIMPLIFY.get(name)
    found = simplify(*args) if simplify else None
    return found if found is not None else Expr({(Atom(name, args),): 1})


def substitute(expr: Expr, values: Mapping[Atom, Expr]) -> Expr:
    """Replaces names, in arguments of atoms too, and simplifies what becomes simpler."""
    if not values or not any(_touches(m, values) for m in expr.terms):
        return expr
    total = ZERO
    for monomial, c in expr.terms.items():
        part = Expr({(): c})
        for atom in monomial:
            part = part * _replaced(atom, values)
        total = total + part
    return total


def _touches(monomial: Monomial, values: Mapping[Atom, Expr]) -> bool:
    return any(
        atom in values or any(_touches(m, values) for arg in atom.args for m in arg.terms)
        for atom in monomial
    )


def _replaced(atom: Atom, values: Mapping[Atom, Expr]) -> Expr:
    if atom in values:
        return values[atom]
    if not atom.args:
        return Expr({(atom,): 1})
    return call(atom.name, *(substitute(arg, values) for arg in atom.args))


def quotient(a: Expr, b: Expr) -> Expr | None:
    """Quotient a / b where b divides a as a polynomial, else None."""
    if not b.terms:
        return None
    rest, found = a, ZERO
    lead = max(b.terms, key=lambda m: (len(m), _monomial_text(m)))
    for _ in range(16):
        if not rest.terms:
            return found
        step = next((s for m in rest.terms if (s := _without(m, lead)) is not None), None)
        if step is None:
            return None
        c = Fraction(rest.terms[_times(step, lead)]) / b.terms[lead]
        part = Expr({step: int(c) if c.denominator == 1 else c})
        found, rest = found + part, rest - part * b
    return None


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _floor_div(a: Expr, b: Expr) -> Expr | None:
    """floor(a / b) where a is b*q + r with 0 <= r < b by construction, else None."""
    if b == ONE:
        return a
    if a.constant is not None and b.constant is not None:
        return as_expr(a.constant // b.constant)
    whole = quotient(a, b)
    return whole if whole is not None and _integral(whole) else None


def _integral(expr: Expr) -> bool:
    return all(Fraction(c).denominator == 1 for c in expr.terms.values())


def _ceil_div(a: Expr, b: Expr) -> Expr | None:
    if b == ONE:
        return a
    if a.constant is not None and b.constant is not None:
        return as_expr(-(-a.constant // b.constant))
    return None


def _half(a: Expr) -> Expr | None:
    return as_expr(a.constant // 2) if a.constant is not None else None


def _same_pad(kernel: Expr, stride: Expr, size: Expr) -> Expr | None:
    """Zeros before the first element, with padding SAME: half of what all windows overhang."""
    if stride == ONE:
        return call("half", kernel - 1)
    values = [e.constant for e in (kernel, stride, size)]
    if None in values:
        return None
    k, s, n = (int(v) for v in values if v is not None)
    return as_expr(max((-(-n // s) - 1) * s + k - n, 0) // 2)


_SIMPLIFY: Mapping[str, Callable[..., Expr | None]] = {
    "div": _floor_div,
    "ceil": _ceil_div,
    "half": _half,
    "pad": _same_pad,
}
