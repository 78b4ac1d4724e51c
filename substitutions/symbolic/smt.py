# pyright: basic
"""Divisibility between sizes and degrees, asked of z3; what it does not find counts as no.

The limit is z3's own count of steps, each question in a context of its own, so that an answer
depends neither on the machine's load nor on the questions before.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import z3

from ..effort import COSTS, LIMITS
from .expr import Expr
from .solve import Solver


def implied(solver: Solver, divisor: Expr, number: Expr) -> bool:
    """Whether the known divisibilities imply that divisor divides number, for positive names."""
    facts = tuple((solver.resolve(d), solver.resolve(n)) for d, n in solver.divisible)
    twos = frozenset(atom.text for atom in solver.at_least_2)
    if solver.unanswered >= LIMITS.questions:
        return False
    every = [expr for fact in facts for expr in fact] + [divisor, number]
    large = sum(len(monomial) for expr in every for monomial in expr.terms) > LIMITS.names
    answer, steps = (None, 0) if large else _implied(facts, divisor, number, twos)
    solver.effort.spend(steps // COSTS.z3)
    solver.unanswered += answer is None
    return answer is True


@lru_cache(maxsize=4096)
def _implied(
    facts: tuple[tuple[Expr, Expr], ...], divisor: Expr, number: Expr, twos: frozenset[str]
) -> tuple[bool | None, int]:
    """The answer, None if it was given up, and how many steps it took."""
    context = z3.Context()
    names: dict[str, Any] = {}
    s = z3.Solver(ctx=context)
    s.set("rlimit", LIMITS.z3_steps)
    for i, (d, n) in enumerate(facts):
        quotient = z3.Int(f"quotient {i}", context)
        s.add(quotient >= 1, _term(d, names, context) * quotient == _term(n, names, context))
    whole, part = _term(number, names, context), _term(divisor, names, context)
    quotient, rest = z3.Ints("q r", context)
    s.add(whole == part * quotient + rest, rest > 0, rest < part, quotient >= 0)
    for name, variable in names.items():
        s.add(variable >= (2 if name in twos else 1))
    answer = s.check()
    steps = next((n for name, n in s.statistics() if name == "rlimit count"), LIMITS.z3_steps)
    return None if answer == z3.unknown else answer == z3.unsat, int(steps)


def _term(expr: Expr, names: dict[str, Any], context: Any) -> Any:
    total: Any = z3.IntVal(0, context)
    for monomial, c in expr.terms.items():
        part: Any = z3.IntVal(int(c), context)
        for atom in monomial:
            part = part * names.setdefault(atom.text, z3.Int(atom.text, context))
        total = total + part
    return total
