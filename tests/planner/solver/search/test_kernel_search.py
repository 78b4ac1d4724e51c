"""What prices play with: prices stay where they were, and the search remains truthful."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.solver.arrays import Flat, Ints, flatten_problem
from planner.solver.bound.memory_multipliers import Prices
from planner.solver.budget import DEFAULT
from planner.solver.incumbent import Incumbent
from planner.solver.options import SolveOptions
from planner.solver.reduce.reduce import reduce
from planner.solver.search.kernel_options import Looks
from planner.solver.search.kernel_search import Focus
from planner.solver.solve import solve
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.flats import rounding
from tests.planner.solver.problems import instance, large
from tests.planner.solver.search.test_branch_and_bound import priced
from tests.planner.solver.test_solve import assert_truthful

SEEDS = range(60)


def test_a_look_leaves_prices_as_they_were() -> None:
    seen = 0
    for seed in SEEDS:
        prices = priced(seed)
        if prices is None:
            continue
        seen += 1
        before, mass = prices.messages.lower().bound, prices.messages.mass.copy()
        focus = Focus(prices.flat, 0)
        focus.look(prices)
        assert prices.messages.lower().bound == before
        assert (prices.messages.mass == mass).all()
        assert (prices.messages.price == prices.price).all()
    assert seen > 10


def test_every_node_is_read_and_both_sides_of_a_tight_limit() -> None:
    """Low prices read what is faster than what fits, so that some node has several options."""
    several = seen = 0
    for seed in SEEDS:
        prices = priced(seed)
        if prices is None:
            continue
        focus = Focus(prices.flat, 0)
        focus.look(prices)
        node = np.repeat(np.arange(prices.flat.size), prices.flat.sizes)
        read = np.bincount(node[focus.read], minlength=prices.flat.size)
        assert (read >= 1).all()
        seen += 1
        several += bool((read > 1).any())
        again = Focus(prices.flat, 0)
        again.look(prices)
        assert (again.read == focus.read).all()
    assert several > 0.8 * seen


def test_what_is_held_is_read_and_near_the_bound() -> None:
    prices = next(p for p in map(priced, SEEDS) if p is not None)
    focus = Focus(prices.flat, 0)
    focus.also(np.zeros(prices.flat.size, dtype=np.int64))
    held = focus.held(prices, 0.0)
    assert (focus.read[prices.flat.first[:-1]]).all()
    assert not (held & ~focus.read).any()
    assert (prices.best.slack[held] <= 0.0).all()
    assert (focus.held(prices, np.inf) == focus.read).all()


def test_the_options_read_are_a_problem_of_their_own() -> None:
    """Its choices are choices of the whole problem that fit, none of them below its bound."""
    found = 0
    for seed in range(200):
        prices = priced(seed)
        if prices is None:
            continue
        flat, offered = prices.flat, list[Ints]()
        focus = Focus(flat, 0)
        focus.look(prices)
        near = focus.near(prices, focus.held(prices, np.inf), np.inf, offered.append)
        for choice in offered:
            assert flat.fits(choice)
            assert focus.read[flat.first[:-1] + choice].all()
        if near is not None and offered:
            found += 1
            least = min(flat.price(choice) for choice in offered)
            assert near.best.bound <= least + rounding(flat)
    assert found > 10


def nothing(
    options: SolveOptions, flat: Flat, held: np.ndarray, near: Prices, best: Ints | None
) -> Ints | None:
    return None


def test_looks_are_in_vain_only_in_a_row() -> None:
    prices = Prices(reduce(flatten_problem(large(0, nodes=5))).flat)
    looks = Looks(Incumbent(SolveOptions(), None), prices, nothing)
    assert not looks.vain
    looks.worth.extend([True, False])
    assert not looks.vain
    looks.worth.append(False)
    assert looks.vain


def test_small_problems_searched_as_wide_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem is wide here, and its programme is too large to be tried as a whole."""
    options = SolveOptions(
        budget=replace(DEFAULT, wide_columns=-1, look_steps=2, exact_columns=0, searched_columns=-1)
    )
    far = missed = looked = 0
    look = Focus.look

    def counted(self: Focus, prices: Prices) -> None:
        nonlocal looked
        looked += 1
        look(self, prices)

    monkeypatch.setattr(Focus, "look", counted)
    for seed in range(400):
        problem = instance(seed, nodes=(2, 9), most=800)
        best, found = brute_force(problem), solve(problem, options)
        assert_truthful(problem, found, best)
        missed += bool(best.choice) and not found.choice
        far += bool(found.choice) and found.cost > best.cost * 1.001
        assert solve(problem, options) == found
    assert looked > 50
    assert missed <= 2
    assert far <= 5
