"""Kernel search: sampling leaves multipliers unchanged, and the search remains truthful."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.solver.arrays import Flat, Ints, flatten_problem
from planner.solver.bound.memory_multipliers import Multipliers
from planner.solver.budget import DEFAULT
from planner.solver.incumbent import Incumbent
from planner.solver.options import SolveOptions
from planner.solver.reduce.reduce import reduce
from planner.solver.search.kernel import Kernel
from planner.solver.search.kernel_search import KernelSearch
from planner.solver.solve import solve
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.flats import rounding
from tests.planner.solver.problems import instance, large
from tests.planner.solver.search.test_branch_and_bound import priced
from tests.planner.solver.test_solve import assert_truthful

SEEDS = range(60)


def test_sampling_leaves_multipliers_unchanged() -> None:
    seen = 0
    for seed in SEEDS:
        multipliers = priced(seed)
        if multipliers is None:
            continue
        seen += 1
        before, mass = multipliers.messages.lower().bound, multipliers.messages.mass.copy()
        kernel = Kernel(multipliers.flat, 0)
        kernel.sample(multipliers)
        assert multipliers.messages.lower().bound == before
        assert (multipliers.messages.mass == mass).all()
        assert (multipliers.messages.multiplier == multipliers.multiplier).all()
    assert seen > 10


def test_every_node_is_sampled_and_both_sides_of_a_tight_limit() -> None:
    """Low multipliers give options that are faster than those that fit."""
    several = seen = 0
    for seed in SEEDS:
        multipliers = priced(seed)
        if multipliers is None:
            continue
        kernel = Kernel(multipliers.flat, 0)
        kernel.sample(multipliers)
        node = np.repeat(np.arange(multipliers.flat.size), multipliers.flat.sizes)
        read = np.bincount(node[kernel.read], minlength=multipliers.flat.size)
        assert (read >= 1).all()
        seen += 1
        several += bool((read > 1).any())
        again = Kernel(multipliers.flat, 0)
        again.sample(multipliers)
        assert (again.read == kernel.read).all()
    assert several > 0.8 * seen


def test_what_is_held_is_read_and_near_the_bound() -> None:
    multipliers = next(p for p in map(priced, SEEDS) if p is not None)
    kernel = Kernel(multipliers.flat, 0)
    kernel.add(np.zeros(multipliers.flat.size, dtype=np.int64))
    held = kernel.promising(multipliers, 0.0)
    assert (kernel.read[multipliers.flat.first[:-1]]).all()
    assert not (held & ~kernel.read).any()
    assert (multipliers.best.slack[held] <= 0.0).all()
    assert (kernel.promising(multipliers, np.inf) == kernel.read).all()


def test_the_options_read_are_a_problem_of_their_own() -> None:
    """Its choices are choices of the whole problem that fit, none of them below its bound."""
    found = 0
    for seed in range(200):
        multipliers = priced(seed)
        if multipliers is None:
            continue
        flat, offered = multipliers.flat, list[Ints]()
        kernel = Kernel(flat, 0)
        kernel.sample(multipliers)
        near = kernel.restricted(
            multipliers, kernel.promising(multipliers, np.inf), np.inf, offered.append
        )
        for choice in offered:
            assert flat.fits(choice)
            assert kernel.read[flat.first[:-1] + choice].all()
        if near is not None and offered:
            found += 1
            least = min(flat.cost_of(choice) for choice in offered)
            assert near.best.bound <= least + rounding(flat)
    assert found > 10


def nothing(
    options: SolveOptions, flat: Flat, held: np.ndarray, near: Multipliers, best: Ints | None
) -> Ints | None:
    return None


def test_searches_are_unproductive_only_in_a_row() -> None:
    multipliers = Multipliers(reduce(flatten_problem(large(0, nodes=5))).flat)
    kernel_search = KernelSearch(Incumbent(SolveOptions(), None), multipliers, nothing)
    assert not kernel_search.unproductive
    kernel_search.worth.extend([True, False])
    assert not kernel_search.unproductive
    kernel_search.worth.append(False)
    assert kernel_search.unproductive


def test_small_problems_searched_as_wide_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem is wide here, and its programme is too large to be tried as a whole."""
    options = SolveOptions(
        budget=replace(
            DEFAULT, wide_columns=-1, reading_steps=2, exact_columns=0, searched_columns=-1
        )
    )
    far = missed = looked = 0
    look = Kernel.sample

    def counted(self: Kernel, multipliers: Multipliers) -> None:
        nonlocal looked
        looked += 1
        look(self, multipliers)

    monkeypatch.setattr(Kernel, "sample", counted)
    for seed in range(200):
        problem = instance(seed, nodes=(2, 9), most=800)
        best, found = brute_force(problem), solve(problem, options)
        assert_truthful(problem, found, best)
        missed += bool(best.choice) and not found.choice
        far += bool(found.choice) and found.cost > best.cost * 1.001
        assert solve(problem, options) == found
    assert looked > 25
    assert missed <= 1
    assert far <= 2
