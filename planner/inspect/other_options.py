"""Other options of one node, each solved in the way in which the plan's own is.

Two solutions of one problem differ in more than the option that was fixed: what costs the same is
decided one way here and another way there. What of a solution is not connected with the option is
therefore kept from the base, so that all remaining differences are due to the option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..solver.arrays import flatten_problem
from ..solver.bound.coordinate_descent import Descent
from ..solver.budget import DEFAULT
from ..solver.exact.bucket_elimination import Tables
from ..solver.problem import Floats, IntraProblem
from ..solver.solve import SolveOptions, solve
from ..solver.work import Work

WORK_EACH = 3e9  # columns that each price may pass over, by an estimate, not measured
TOLERANCE = 1e-4  # relative gap at which a solve ends
EXACT = 1e-9  # relative: sums of the same costs in another order


@dataclass(frozen=True, slots=True)
class Solved:
    """A choice of every node, its cost [s], and a bound [s] of all choices with its option."""

    choice: tuple[int, ...]
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """(cost - bound) / cost."""
        return 0.0 if self.cost <= 0 else max(0.0, (self.cost - self.bound) / self.cost)


class Instead:
    """Solves a problem with one option of one node fixed.

    Args:
        problem: problem of the plan.
        choice: that choice.
        wished: costs of the nodes that the user's wishes limit.
    """

    def __init__(
        self, problem: IntraProblem, choice: Sequence[int], wished: Mapping[int, Floats]
    ) -> None:
        self.problem, self.choice, self.wished = problem, tuple(choice), wished

    def _options(self) -> SolveOptions:
        budget = replace(DEFAULT, exact=False)
        return SolveOptions(budget=budget, tolerance=TOLERANCE, work=Work(WORK_EACH))

    def base(self, node: int) -> Solved:
        """The best found with the plan's own option, solved like the others."""
        k, own = self.choice[node], self.problem.cost(self.choice)
        answer = solve(self._fixed(node, k), self._options(), Tables())
        if answer.choice and answer.cost < own * (1 - TOLERANCE):
            return Solved(answer.choice, answer.cost, answer.bound)
        return Solved(self.choice, own, min(answer.bound, own))

    def other(self, node: int, k: int, base: Solved) -> Solved | None:
        """The best found with another option; None if none fits."""
        fixed = self._fixed(node, k)
        answer = solve(fixed, self._options(), Tables())
        found = [self._near(base.choice, answer.choice, node)] if answer.choice else []
        step = [*base.choice]
        step[node] = k
        found.extend((tuple(step), answer.choice) if answer.choice else (tuple(step),))
        if np.isfinite(fixed.cost(step)):  # else there is nothing to descend from
            flat = flatten_problem(fixed)
            found.append(tuple(Descent(flat).improve(np.array(step)).tolist()))
        costs = [(fixed.cost(c), n, c) for n, c in enumerate(found) if fixed.is_feasible(c)]
        if not costs:
            return None
        cost, _, choice = min(costs)
        return Solved(choice, cost, min(answer.bound, cost))

    def among(self, kept: Mapping[int, Sequence[int]]) -> Solved | None:
        """The best found with some nodes limited to some of their options; None if none fits.

        Args:
            kept: node -> numbers of options.
        """
        fixed = self._limited(kept)
        answer = solve(fixed, self._options(), Tables())
        if not answer.choice:
            return None
        improved = Descent(flatten_problem(fixed)).improve(np.array(answer.choice)).tolist()
        found = [tuple(improved), answer.choice]
        cost, _, choice = min(
            (fixed.cost(c), n, c) for n, c in enumerate(found) if fixed.is_feasible(c)
        )
        return Solved(choice, cost, min(answer.bound, cost))

    def resolution_s(self, other: Solved, base: Solved) -> float:
        """Resolution of the solver [s]: smaller differences of two solutions mean nothing."""
        return (EXACT + min(other.gap + base.gap, TOLERANCE)) * base.cost

    def _fixed(self, node: int, k: int) -> IntraProblem:
        return self._limited({node: (k,)})

    def _limited(self, kept: Mapping[int, Sequence[int]]) -> IntraProblem:
        """The problem with some nodes limited to some of their options, whatever is wished."""
        costs = list(self.problem.node_cost)
        for limited, cost in self.wished.items():
            costs[limited] = cost
        for node, options in kept.items():
            only = np.full(len(self.problem.node_cost[node]), np.inf)
            only[list(options)] = self.problem.node_cost[node][list(options)]
            costs[node] = only
        return replace(self.problem, node_cost=tuple(costs))

    def _near(self, base: Sequence[int], found: tuple[int, ...], node: int) -> tuple[int, ...]:
        """A solution with all that is not connected with a node as in the base, if that fits."""
        differs = {v for v, (a, b) in enumerate(zip(base, found, strict=True)) if a != b}
        joined: dict[int, list[int]] = {v: [] for v in differs}
        for edge in self.problem.edges:
            if edge.u in differs and edge.v in differs:
                joined[edge.u].append(edge.v)
                joined[edge.v].append(edge.u)
        seen, waiting = {node}, [node]
        while waiting:
            for v in joined.get(waiting.pop(), ()):
                if v not in seen:
                    seen.add(v)
                    waiting.append(v)
        near = tuple(found[v] if v in seen else k for v, k in enumerate(base))
        return near if self.problem.is_feasible(near) else found
