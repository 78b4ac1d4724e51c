"""An output of a rule as a polynomial in the elements of its inputs.

A value is a sum of monomials: a coefficient, summed (bound) labels, and factors that depend on
labels: elements of inputs, equalities, windows, unknown functions of such sums. Positions are
`Expr`s over labels. Nothing is approximated: equal normal forms are equal for all sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..effort import COSTS, LIMITS, Effort
from .expr import ONE, ZERO, Atom, Expr, as_expr, call, substitute, symbol
from .solve import UndecidedError

LABEL = "@"


@dataclass(frozen=True, slots=True)
class Index:
    """A position along a dimension, known to lie in [start, start + length) if length is given."""

    at: Expr
    start: Expr = ZERO
    length: Expr | None = None


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a monomial; `at` are its positions.

    in: an element of input `name`. eq: 1 where both positions are equal, else 0. box: 1 where the
    first is in [0, second), else 0. fn: function `name` of the value `inside`. max: the largest
    `inside` for the labels `bound` in `window`.
    """

    kind: str
    at: tuple[Expr, ...] = ()
    name: str = ""
    inside: Value = ()
    bound: tuple[tuple[str, Expr | None], ...] = ()
    window: tuple[Factor, ...] = ()

    def names(self) -> set[Atom]:
        """Atoms of positions, those inside functions too (bound ones included)."""
        found: set[Atom] = set()
        for expr in self.at:
            found |= expr.atoms()
        for monomial in self.inside:
            for factor in monomial.factors:
                found |= factor.names()
        for factor in self.window:
            found |= factor.names()
        return found

    def replaced(self, values: Mapping[Atom, Expr]) -> Factor:
        return Factor(
            self.kind,
            tuple(substitute(e, values) for e in self.at),
            self.name,
            tuple(m.replaced(values) for m in self.inside),
            self.bound,
            tuple(f.replaced(values) for f in self.window),
        )


@dataclass(frozen=True, slots=True)
class Monomial:
    """coefficient * sum over bound labels (name, size; None: all integers) of the factors."""

    coefficient: Expr
    bound: tuple[tuple[str, Expr | None], ...] = ()
    factors: tuple[Factor, ...] = ()

    def replaced(self, values: Mapping[Atom, Expr]) -> Monomial:
        factors = tuple(f.replaced(values) for f in self.factors)
        return Monomial(self.coefficient, self.bound, factors)


Value = tuple[Monomial, ...]


@dataclass
class Labels:
    """Fresh labels and the sizes of their ranges, and a count of the work of a proof."""

    effort: Effort = field(default_factory=Effort)
    sizes: dict[Atom, Expr | None] = field(default_factory=dict[Atom, "Expr | None"])
    work: int = 0
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def spend(self, work: int) -> None:
        """Counts work.

        Raises:
            UndecidedError: if it is too much for a proof.
            SpentError: if it is too much for a rule.
        """
        self.effort.spend(work * COSTS.element)
        self.work += work
        if self.work > LIMITS.elements:
            raise UndecidedError("the sides are too large when written out")

    def make(self, size: Expr | None) -> tuple[str, Expr]:
        """A label over [0, size), or over all integers; 0 where the size is 1."""
        if size == ONE:
            return "", ZERO
        name = f"{LABEL}{next(self._count)}"
        self.sizes[Atom(name)] = size
        return name, symbol(name)


def is_label(atom: Atom) -> bool:
    return atom.name.startswith(LABEL)


def constant(value: Expr) -> Value:
    return (Monomial(value),) if value.terms else ()


def product(a: Value, b: Value) -> Value:
    if len(a) * len(b) > LIMITS.monomials:
        raise UndecidedError(f"{len(a) * len(b)} monomials")
    return tuple(
        Monomial(x.coefficient * y.coefficient, x.bound + y.bound, x.factors + y.factors)
        for x in a
        for y in b
    )


def times(value: Value, factors: tuple[Factor, ...]) -> Value:
    return tuple(Monomial(m.coefficient, m.bound, m.factors + factors) for m in value)


def summed(value: Value, labels: tuple[tuple[str, Expr | None], ...]) -> Value:
    kept = tuple(label for label in labels if label[0])
    return tuple(Monomial(m.coefficient, kept + m.bound, m.factors) for m in value)


def scaled(value: Value, by: Expr) -> Value:
    return tuple(Monomial(m.coefficient * by, m.bound, m.factors) for m in value)


def below(expr: Expr, sizes: Mapping[Atom, Expr | None], bound: Expr) -> bool:
    """Whether a position is known to lie in [0, bound)."""
    if expr.constant is not None:
        return expr.constant >= 0 and (bound - expr).sign() == 1
    if len(expr.terms) != 1:
        return False
    ((monomial, c),) = expr.terms.items()
    if c != 1 or len(monomial) != 1:
        return False
    atom = monomial[0]
    size = {"mod": 1, "chunk": 1}.get(atom.name)
    largest = atom.args[size] if size else sizes.get(atom)
    return largest is not None and (bound - largest).sign() in (0, 1)


def divided(expr: Expr, by: Expr, sizes: Mapping[Atom, Expr | None]) -> Expr:
    """floor(expr / by), where by is a product of positive names or a number.

    floor((by*q + r) / by) = q + floor(r / by), and floor(floor(a / p) / q) = floor(a / (p*q)), so
    that the factors of `by` may be taken one by one, in any order; likewise
    floor((n + floor(a / p)) / q) = floor((n*p + a) / (p*q)).
    """
    if by == ONE or not expr.terms:
        return expr
    whole, rest = pulled(expr, by)
    if not rest.terms or below(rest, sizes, by):
        return whole
    factors = _factors(by)
    for i, factor in enumerate(factors):
        found = _divided_once(rest, factor, sizes)
        if found is not None:
            left = ONE
            for other in (*factors[:i], *factors[i + 1 :]):
                left = left * other
            return whole + divided(found, left, sizes)
    nested = _nested(rest)
    if nested is not None:
        inner, more = nested
        return whole + divided(inner, by * more, sizes)
    return whole + call("div", rest, by)


def _nested(expr: Expr) -> tuple[Expr, Expr] | None:
    """(x, p) with floor(expr / b) = floor(x / (b*p)) for every b, if a term is floor(y / p)."""
    for monomial, c in expr.terms.items():
        if c == 1 and len(monomial) == 1 and monomial[0].name == "div":
            inner, by = monomial[0].args
            return (expr - Expr({monomial: 1})) * by + inner, by
    return None


def pulled(expr: Expr, k: Expr) -> tuple[Expr, Expr]:
    """(q, r) with expr = k*q + r, where q takes every term that k divides."""
    whole, rest = ZERO, ZERO
    for monomial, c in expr.terms.items():
        part = Expr({monomial: c})
        reduced = _over(part, k)
        if reduced is None:
            rest = rest + part
        else:
            whole = whole + reduced
    return whole, rest


def _factors(by: Expr) -> list[Expr]:
    if len(by.terms) != 1:
        return [by]
    ((monomial, c),) = by.terms.items()
    found = [Expr({(atom,): 1}) for atom in monomial]
    return found if c == 1 else [*found, as_expr(int(c))]


def _divided_once(expr: Expr, k: Expr, sizes: Mapping[Atom, Expr | None]) -> Expr | None:
    """The q of expr = k*q + r with r below k; chunk numbers divide by a factor of theirs."""
    whole, rest = pulled(expr, k)
    if below(rest, sizes, k):
        return whole
    if not whole.terms and len(rest.terms) == 1:
        ((monomial, c),) = rest.terms.items()
        if c == 1 and len(monomial) == 1 and monomial[0].name == "chunk":
            position, degree, size = monomial[0].args
            fewer = _over(degree, k)
            if fewer is not None:
                return chunk(position, fewer, size)
    return None


def _over(expr: Expr, k: Expr) -> Expr | None:
    """Quotient expr / k for single monomials, if exact."""
    ((monomial, c),) = expr.terms.items() if len(expr.terms) == 1 else (((), 0),)
    ((divisor, d),) = k.terms.items() if len(k.terms) == 1 else (((), 0),)
    if not c or not d or c % d:
        return None
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return Expr({tuple(left): c // d})


def chunk(position: Expr, degree: Expr, size: Expr) -> Expr:
    """Which of `degree` equal parts of a dimension a position is in."""
    return ZERO if degree == ONE else call("chunk", position, degree, size)
