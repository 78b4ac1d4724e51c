"""The normal form of a value: two values with one normal form are equal for all sizes.

The steps are equalities of sums over integers: a sum over a label that must equal something is
that one term, a sum of a term that does not depend on the label counts it, windows that hold
always vanish, and names of bound labels do not matter.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

from ..effort import LIMITS
from .expr import ONE, ZERO, Atom, Expr, call, substitute
from .solve import UndecidedError
from .values import (
    Factor,
    Labels,
    Monomial,
    Value,
    below,
    divided,
    is_label,
    pulled,
)


def normal_form(value: Value, labels: Labels, names: Mapping[Atom, Expr]) -> dict[str, str]:
    """Text of each monomial without its coefficient, and the coefficients.

    Args:
        value: what to bring to normal form.
        labels: ranges of all labels that occur.
        names: what to call the labels that are not bound.

    Raises:
        UndecidedError: if the form would be too large or a sum does not end.
    """
    total: dict[str, Expr] = {}
    for monomial in _reduced(value, labels):
        text = _monomial_text(monomial, labels, dict(names), 0)
        total[text] = total.get(text, ZERO) + monomial.coefficient
    return {text: str(c) for text, c in sorted(total.items()) if c.terms}


def _reduced(value: Value, labels: Labels, outer: tuple[Factor, ...] = ()) -> list[Monomial]:
    """Reduced monomials; `outer` are windows outside of which the value does not matter."""
    if len(value) > LIMITS.monomials:
        raise UndecidedError(f"{len(value)} monomials")
    found = [_reduce(monomial, labels, outer) for monomial in value]
    return [monomial for monomial in found if monomial is not None]


def _reduce(monomial: Monomial, labels: Labels, outer: tuple[Factor, ...]) -> Monomial | None:
    """The monomial without equalities and windows that say nothing; None if it is 0."""
    while True:
        labels.spend(1)
        factors: list[Factor] = []
        plain = [f for f in monomial.factors if f.kind in ("eq", "box")]
        for factor in (_tidy_test(f, labels) for f in plain):
            verdict = _decide(factor, labels)
            if verdict is False:
                return None
            if verdict is None and factor not in factors:
                factors.append(factor)
        factors = _windows(factors, outer)
        inner = (*outer, *(f for f in factors if f.kind == "box"))
        rest = (f for f in monomial.factors if f.kind not in ("eq", "box"))
        factors += [_tidy_factor(f, labels, inner) for f in rest]
        monomial = Monomial(monomial.coefficient, monomial.bound, tuple(factors))
        smaller = _eliminate(monomial, labels) or _joined(monomial, labels)
        if smaller is None:
            return _counted(_oriented(monomial))
        monomial = smaller


def _tidy_test(factor: Factor, labels: Labels) -> Factor:
    """An equality as something = 0, and equalities and windows with one sign of two."""
    at = tuple(tidy(e, labels) for e in factor.at)
    if factor.kind == "eq":
        zero = at[0] - at[1]
        return Factor("eq", (-zero if _negative(zero) else zero, ZERO))
    return Factor("box", (at[1] - ONE - at[0] if _negative(at[0]) else at[0], at[1]))


def _tidy_factor(factor: Factor, labels: Labels, outer: tuple[Factor, ...]) -> Factor:
    at = tuple(tidy(e, labels) for e in factor.at)
    window = tuple(_tidy_test(f, labels) for f in factor.window)
    inside = tuple(_reduced(factor.inside, labels, (*outer, *window))) if factor.inside else ()
    if factor.kind == "fn" and len(inside) == 1:  # relu(relu(x)) = relu(x)
        only = inside[0]
        if only.coefficient == ONE and not only.bound and len(only.factors) == 1:
            within = only.factors[0]
            if within.kind == "fn" and within.name == factor.name == "relu":
                return within
    return Factor(factor.kind, at, factor.name, inside, factor.bound, window)


def _negative(expr: Expr) -> bool:
    """Whether the first term with a name, in the order of texts, is negative."""
    named = (m for m in expr.terms if m)
    first = min(named, key=lambda m: "*".join(map(str, m)), default=())
    return expr.terms.get(first, 0) < 0


def tidy(expr: Expr, labels: Labels) -> Expr:
    """The position with divisions done where labels show them exact."""
    if not any(a.args for a in expr.atoms()):
        return expr
    total = ZERO
    for monomial, c in expr.terms.items():
        part = Expr({(): c})
        for atom in monomial:
            part = part * _tidy_atom(atom, labels)
        total = total + part
    return _rejoined(total)


def _tidy_atom(atom: Atom, labels: Labels) -> Expr:
    if not atom.args:
        return Expr({(atom,): 1})
    args = tuple(tidy(arg, labels) for arg in atom.args)
    if atom.name == "div":
        return divided(args[0], args[1], labels.sizes)
    if atom.name == "mod":
        rest = pulled(args[0], args[1])[1]
        return rest if below(rest, labels.sizes, args[1]) else call("mod", rest, args[1])
    return call(atom.name, *args)


def _rejoined(expr: Expr) -> Expr:
    """Applies b * floor(a / b) + a mod b = a."""
    for monomial, c in expr.terms.items():
        if len(monomial) == 1 and monomial[0].name == "mod":
            a, b = monomial[0].args
            both = call("mod", a, b) + call("div", a, b) * b
            rest = expr - both * c
            if len(rest.terms) <= len(expr.terms) - 2:
                return _rejoined(rest + a * c)
    return expr


def _decide(factor: Factor, labels: Labels) -> bool | None:
    """Whether an equality or a window holds always or never; None if it depends."""
    if factor.kind == "eq":
        sign = factor.at[0].constant
        return None if sign is None else sign == 0
    if factor.kind == "box":
        at, size = factor.at
        if below(at, labels.sizes, size):
            return True
        if at.constant is not None and (at.constant < 0 or (at - size).sign() in (0, 1)):
            return False
    return None


def _windows(factors: Sequence[Factor], outer: tuple[Factor, ...]) -> list[Factor]:
    """The factors without windows that another window on the same position implies."""
    kept: list[Factor] = []
    for i, factor in enumerate(factors):
        others = (*kept, *factors[i + 1 :], *outer)
        if factor.kind == "box" and any(_implies(other, factor) for other in others):
            continue
        kept.append(factor)
    return kept


def _implies(inner: Factor, outer: Factor) -> bool:
    if inner.kind != "box":
        return False
    shift = outer.at[0] - inner.at[0]  # outer position = inner position + shift
    if any(is_label(atom) for atom in shift.atoms()):
        return False
    low = shift.sign()
    high = (outer.at[1] - shift - inner.at[1]).sign()
    return low in (0, 1) and high in (0, 1)


def _eliminate(monomial: Monomial, labels: Labels) -> Monomial | None:
    """The monomial with one bound label fewer, where an equality determines it."""
    for i, factor in enumerate(monomial.factors):
        if factor.kind != "eq":
            continue
        for name, size in monomial.bound:
            atom = Atom(name)
            c = factor.at[0].terms.get((atom,))
            if c not in (1, -1):
                continue
            rest = (factor.at[0] - Expr({(atom,): c})) * -c
            if atom in rest.atoms():
                continue
            others = tuple(
                f.replaced({atom: rest}) for j, f in enumerate(monomial.factors) if j != i
            )
            left = tuple(label for label in monomial.bound if label[0] != name)
            return Monomial(monomial.coefficient, left, others + _range(rest, size, labels))
    return None


def _joined(monomial: Monomial, labels: Labels) -> Monomial | None:
    """The monomial with one label for two that occur as a*size(b) + b only."""
    for (outer, count), (inner, size) in itertools.permutations(monomial.bound, 2):
        if count is None or size is None:
            continue
        a, b = Atom(outer), Atom(inner)
        along = [e for f in monomial.factors for e in f.at if a in e.atoms()]
        if not along or any(_slope(e, a) != _slope(e, b) * size for e in along):
            continue
        name, label = labels.make(count * size)
        moved = {b: label - Expr({(a,): 1}) * size}
        factors = tuple(f.replaced(moved) for f in monomial.factors)
        if not any(a in f.names() for f in factors):
            left = tuple(bound for bound in monomial.bound if bound[0] not in (outer, inner))
            return Monomial(monomial.coefficient, ((name, count * size), *left), factors)
    return None


def _slope(expr: Expr, atom: Atom) -> Expr:
    """What an atom is multiplied by, its occurrences inside calls left out."""
    total = ZERO
    for monomial, c in expr.terms.items():
        if atom in monomial:
            rest = list(monomial)
            rest.remove(atom)
            total = total + Expr({tuple(rest): c})
    return total


def _oriented(monomial: Monomial) -> Monomial:
    """Labels over all integers run upwards along inputs: t may be replaced by -t."""
    flipped: dict[Atom, Expr] = {}
    for name, size in monomial.bound:
        atom = Atom(name)
        along = [e.terms.get((atom,), 0) for f in monomial.factors if f.kind == "in" for e in f.at]
        if size is None and sum(along) < 0:
            flipped[atom] = Expr({(atom,): -1})
    return monomial.replaced(flipped) if flipped else monomial


def _range(at: Expr, size: Expr | None, labels: Labels) -> tuple[Factor, ...]:
    """What remains of a label's range once it is known: at in [0, size).

    With at = size*q + r that says floor(r / size) = -q.
    """
    if size is None or below(at, labels.sizes, size):
        return ()
    whole, rest = pulled(at, size)
    if whole.terms:
        return (Factor("eq", (divided(rest, size, labels.sizes) + whole, ZERO)),)
    return (Factor("box", (at, size)),)


def _counted(monomial: Monomial) -> Monomial:
    """Sums over labels on which nothing depends are counts."""
    used: set[Atom] = set()
    for factor in monomial.factors:
        used |= factor.names()
    coefficient = monomial.coefficient
    kept: list[tuple[str, Expr | None]] = []
    for name, size in monomial.bound:
        if Atom(name) in used:
            kept.append((name, size))
        elif size is None:
            raise UndecidedError("a sum over all integers")
        else:
            coefficient = coefficient * size
    return Monomial(coefficient, tuple(kept), monomial.factors)


def _monomial_text(monomial: Monomial, labels: Labels, names: dict[Atom, Expr], depth: int) -> str:
    bound = [(Atom(name), size) for name, size in monomial.bound]
    if not bound:
        return _product_text(monomial.factors, labels, names, depth)
    colours = _colours(monomial.factors, bound, labels, names, depth)
    groups: dict[str, list[Atom]] = {}
    for atom, _ in bound:
        groups.setdefault(colours[atom], []).append(atom)
    orders = 1
    for group in groups.values():
        for i in range(2, len(group) + 1):
            orders *= i
    if orders > LIMITS.orders:
        raise UndecidedError(f"{orders} orders of summed labels")
    best = ""
    choices = [itertools.permutations(groups[key]) for key in sorted(groups)]
    for choice in itertools.product(*choices):
        order = [atom for group in choice for atom in group]
        text = _ordered_text(monomial.factors, order, labels, names, depth)
        if not best or text < best:
            best = text
    return best


def _ordered_text(
    factors: Sequence[Factor], order: Sequence[Atom], labels: Labels,
    names: Mapping[Atom, Expr], depth: int,
) -> str:  # fmt: skip
    inner = dict(names)
    heads: list[str] = []
    for i, atom in enumerate(order):
        name = f"b{depth}.{i}"
        inner[atom] = Expr({(Atom(name),): 1})
        size = labels.sizes.get(atom)
        heads.append(f"{name}<{'inf' if size is None else size}")
    return f"sum[{','.join(heads)}] {_product_text(factors, labels, inner, depth + 1)}"


def _colours(
    factors: Sequence[Factor], bound: Sequence[tuple[Atom, Expr | None]], labels: Labels,
    names: Mapping[Atom, Expr], depth: int,
) -> dict[Atom, str]:  # fmt: skip
    """A text for each bound label that does not depend on how labels are named."""
    colours = {atom: str(size) for atom, size in bound}
    for _ in range(2):
        fresh: dict[Atom, str] = {}
        for atom, _ in bound:
            inner = dict(names)
            for other, _ in bound:
                mark = "*" if other == atom else f"_{colours[other]}"
                inner[other] = Expr({(Atom(mark),): 1})
            texts = sorted(_factor_text(f, labels, inner, depth + 1) for f in factors)
            fresh[atom] = f"{colours[atom]}|{';'.join(texts)}"
        order = sorted(set(fresh.values()))
        colours = {atom: f"{order.index(text):03d}" for atom, text in fresh.items()}
    return colours


def _product_text(
    factors: Sequence[Factor], labels: Labels, names: Mapping[Atom, Expr], depth: int
) -> str:
    return " ".join(sorted(_factor_text(f, labels, names, depth) for f in factors)) or "1"


def _factor_text(factor: Factor, labels: Labels, names: Mapping[Atom, Expr], depth: int) -> str:
    labels.spend(1)
    at = [substitute(e, names) for e in factor.at]
    if factor.kind == "eq" and _negative(at[0]):
        at[0] = -at[0]
    if factor.kind == "box" and _negative(at[0]):
        at[0] = at[1] - ONE - at[0]  # 0 <= e < n exactly if 0 <= n - 1 - e < n
    places = ", ".join(map(str, at))
    if factor.kind in ("in", "eq", "box"):
        return f"{factor.name or factor.kind}[{places}]"
    # max keeps its window labels as bound ones of a single monomial around the inside.
    if factor.kind == "max":
        within = Factor("fn", (), "", factor.inside)
        window = Monomial(ONE, factor.bound, (*factor.window, within))
        return f"max({_monomial_text(window, labels, dict(names), depth + 1)})"
    total: dict[str, Expr] = {}
    for monomial in factor.inside:
        text = _monomial_text(monomial, labels, dict(names), depth + 1)
        total[text] = total.get(text, ZERO) + monomial.coefficient
    shown = " + ".join(f"{c} {text}" for text, c in sorted(total.items()) if c.terms)
    return f"{factor.name}({shown})"


def share(kernel_h: int, kernel_w: int) -> Expr:
    """Weight of an element in an average over a window."""
    return Expr({(): Fraction(1, kernel_h * kernel_w)})
