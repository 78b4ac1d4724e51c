"""A cache for the reduction of a problem that is solved twice, first for a quick bound."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..arrays import Flat, flatten_problem
from ..mixing import Mixing
from ..problem import IntraProblem
from .reduce import Reduced, reduce


@dataclass(eq=False)
class ReductionCache:
    """The last problem, and its reduced form.

    mixing: what makes problems of one with windows, so that equal ones are seen to be equal.
    """

    problem: IntraProblem | None = None
    flat: Flat | None = None
    top: Reduced | None = None
    mixing: Mixing = field(default_factory=Mixing)

    def reduced(self, problem: IntraProblem) -> tuple[Flat, Reduced]:
        """The problem as flat arrays, and a copy of its reduced form."""
        if self.flat is None or self.top is None or not _same(problem, self.problem):
            self.problem, self.flat = problem, flatten_problem(problem)
            self.top = reduce(self.flat)
        return self.flat, Reduced(self.top.flat, [*self.top.steps], self.top.broken)

    def forget(self) -> None:
        """Clears the cache."""
        self.problem = self.flat = self.top = None
        self.mixing = Mixing()


def _same(a: IntraProblem, b: IntraProblem | None) -> bool:
    """Whether two problems are made of the same arrays."""
    if b is None or (a.limit, a.intervals) != (b.limit, b.intervals):
        return False
    if (len(a.node_cost), len(a.edges)) != (len(b.node_cost), len(b.edges)):
        return False
    arrays = zip((*a.node_cost, *a.usage), (*b.node_cost, *b.usage), strict=True)
    return all(x is y for x, y in arrays) and all(
        (x.u, x.v) == (y.u, y.v) and x.table is y.table
        for x, y in zip(a.edges, b.edges, strict=True)
    )
