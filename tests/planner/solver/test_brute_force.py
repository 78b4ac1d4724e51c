"""The oracle, held against the definition of the problem."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from planner.common.stop import Stop
from planner.solver.problem import IntraProblem
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.problems import all_costs, instance


@pytest.mark.parametrize("seed", range(60))
def test_tries_every_choice(seed: int) -> None:
    problem = instance(seed, nodes=(0, 5), most=100)
    every = list(itertools.product(*(range(len(c)) for c in problem.node_cost)))
    fitting = [choice for choice in every if problem.is_feasible(choice)]
    found = brute_force(problem)
    if not fitting:
        assert (found.choice, found.cost, found.stop) == ((), math.inf, Stop.INFEASIBLE)
        return
    assert found.choice in fitting
    assert found.cost == problem.cost(found.choice)
    assert found.cost == pytest.approx(min(map(problem.cost, fitting)), rel=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_agrees_with_the_table_of_all_costs(seed: int) -> None:
    problem = instance(seed, most=500, memory=False)
    assert brute_force(problem).cost == pytest.approx(float(all_costs(problem).min()), rel=1e-12)


def test_memory_is_looked_at_in_every_block() -> None:
    sizes = 17  # more choices than one block holds
    problem = IntraProblem(
        tuple(np.array([1.0, 0.0]) for _ in range(sizes)), (),
        tuple(np.array([0.0, 1.0]) for _ in range(sizes)), ((0, 1),) * sizes, 16.0,
    )  # fmt: skip
    assert brute_force(problem).cost == 1.0
    assert brute_force(replace(problem, limit=-1.0)).stop is Stop.INFEASIBLE


def test_too_many_choices() -> None:
    costs = tuple(np.zeros(4) for _ in range(12))
    problem = IntraProblem(costs, (), costs, ((0, 1),) * 12, 1.0)
    with pytest.raises(ValueError, match="16777216 choices"):
        brute_force(problem)
