# pyright: basic
"""Divisibility between sizes and degrees, asked of z3; a time-out counts as no."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import z3

from .expr import Expr
from .solve import Solver

LIMIT_MS = 200


def implied(solver: Solver, divisor: Expr, number: Expr) -> bool:
    """Whether the known divisibilities imply that divisor divides number, for positive names."""
    facts = tuple((solver.resolve(d), solver.resolve(n)) for d, n in solver.divisible)
    twos = frozenset(atom.text for atom in solver.at_least_2)
    return _implied(facts, divisor, number, twos)


@lru_cache(maxsize=4096)
def _implied(
    facts: tuple[tuple[Expr, Expr], ...], divisor: Expr, number: Expr, twos: frozenset[str]
) -> bool:
    names: dict[str, Any] = {}
    s = z3.Solver()
    s.set("timeout", LIMIT_MS)
    for i, (d, n) in enumerate(facts):
        quotient = z3.Int(f"quotient {i}")
        s.add(quotient >= 1, _term(d, names) * quotient == _term(n, names))
    whole, part = _term(number, names), _term(divisor, names)
    quotient, rest = z3.Ints("q r")
    s.add(whole == part * quotient + rest, rest > 0, rest < part, quotient >= 0)
    for name, variable in names.items():
        s.add(variable >= (2 if name in twos else 1))
    return s.check() == z3.unsat


def _term(expr: Expr, names: dict[str, Any]) -> Any:
    total: Any = z3.IntVal(0)
    for monomial, c in expr.terms.items():
        part: Any = z3.IntVal(int(c))
        for atom in monomial:
            part = part * names.setdefault(atom.text, z3.Int(atom.text))
        total = total + part
    return total
