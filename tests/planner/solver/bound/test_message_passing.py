"""Message passing: its bound and slack hold for every choice that fits, at any multipliers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.solver.arrays import Flat, flatten_problem
from planner.solver.bound.coordinate_descent import Descent
from planner.solver.bound.memory_multipliers import Multipliers
from planner.solver.bound.message_passing import Messages
from planner.solver.bound.reduced_cost_fixing import cheap_enough
from planner.solver.budget import DEFAULT
from planner.solver.problem import Edge, IntraProblem
from planner.solver.reduce.arc_consistency import consistent
from planner.solver.reduce.remap import keeping, remap
from planner.solver.search.large_neighbourhoods import Neighbours
from tests.helpers_exhaustive import usual
from tests.planner.solver.flats import best, choices, rounding, small
from tests.planner.solver.flats import costs as costs_of

BLOCKS = [range(start, start + 100) for start in range(0, 400, 100)]


def usable(seed: int) -> Flat | None:
    """A problem that message passing takes: all options may be part of some choice."""
    flat = small(seed)
    while flat.size and np.isfinite(flat.constant) and flat.limit.min(initial=0.0) >= 0.0:
        held = consistent(flat)
        if held.all():
            return flat
        node = np.repeat(np.arange(flat.size), flat.sizes)
        if (np.bincount(node[held], minlength=flat.size) == 0).any():
            return None
        flat = remap(flat, keeping(flat, held))
    return None


def passed(flat: Flat, seed: int) -> Messages:
    rng = np.random.default_rng(seed)
    state = Messages(flat)
    scale = float(np.abs(flat.cost).max(initial=0.0)) / 20
    for _ in range(seed % 4):
        state.set_multiplier(scale * rng.random(len(flat.limit)))
        state.sweep()
    return state


@pytest.mark.parametrize("seeds", BLOCKS, ids=str)
def test_bound_and_slack_hold_for_every_choice_that_fits(seeds: range) -> None:
    seen = 0
    for seed in seeds:
        flat = usable(seed)
        if flat is None:
            continue
        seen += 1
        every, cost, error = choices(flat), costs_of(flat), rounding(flat)
        lower = passed(flat, seed).lower()
        assert lower.bound <= cost.min() + error, seed
        for v in range(flat.size):
            for i in range(int(flat.sizes[v])):
                least = cost[every[:, v] == i].min()
                assert lower.bound + lower.slack[flat.first[v] + i] <= least + error, (seed, v)
    assert seen > 30


@pytest.mark.parametrize("seed", usual(range(60), range(30)))
def test_every_sweep_from_a_rest_raises_the_bound(seed: int) -> None:
    flat = usable(seed)
    if flat is None:
        return
    state = passed(flat, seed)
    bound = state.lower().bound
    for _ in range(8):
        state.momentum = state.no_momentum()
        state.sweep()
        after = state.lower().bound
        assert after >= bound - rounding(flat)
        bound = after


def chain(count: int) -> Flat:
    """A long chain with loops that ends on either side want differently."""
    rng = np.random.default_rng(3)
    cost = [rng.random(6) for _ in range(count)]
    edges = [Edge(v, v + d, rng.random((6, 6))) for v in range(count) for d in (1, 2)
             if v + d < count]  # fmt: skip
    problem = IntraProblem(
        tuple(cost), tuple(edges), (np.zeros(6),) * count, ((0, 0),) * count, math.inf
    )
    return flatten_problem(problem)


def test_going_on_the_same_way_is_faster_than_sweeps_alone() -> None:
    flat, bounds = chain(80), dict[bool, float]()
    for alone in (False, True):
        state = Messages(flat)
        for _ in range(40):
            state.sweep()
            if alone:
                state.momentum = state.no_momentum()
        bounds[alone] = state.lower().bound
    longer = Messages(flat)
    for _ in range(400):
        longer.sweep()
        longer.momentum = longer.no_momentum()
    most = longer.lower().bound
    assert bounds[True] < bounds[False] <= most * 1.001
    assert most - bounds[False] < 0.5 * (most - bounds[True])


@pytest.mark.parametrize("seed", usual(range(40), range(20)))
def test_single_precision_is_only_a_little_worse(seed: int) -> None:
    """The bound itself is in double precision: it holds."""
    flat = usable(seed)
    if flat is None or best(flat) == math.inf:
        return
    found: list[float] = []
    for single in (False, True):
        state = Messages(flat, single=single)
        for _ in range(6):
            state.sweep()
        found.append(state.lower().bound)
    scale = float(
        np.abs(flat.cost).max(initial=0.0)
        + np.abs(flat.pool[np.isfinite(flat.pool)]).max(initial=0.0)
    )
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-4 * scale * flat.size)
    assert found[1] <= best(flat) + rounding(flat)


@pytest.mark.parametrize("seeds", BLOCKS, ids=str)
def test_fixing_keeps_what_is_cheap_enough(seeds: range) -> None:
    for seed in seeds:
        flat = usable(seed)
        if flat is None or best(flat) == math.inf:
            continue
        state = passed(flat, seed)
        lower = state.lower()
        margin = best(flat) * (1 + seed % 3 / 10) - lower.bound + rounding(flat)
        fixed, held = cheap_enough(state, lower, margin)
        for choice, cost in zip(choices(flat), costs_of(flat), strict=True):
            if cost <= lower.bound + margin - rounding(flat):
                assert held[flat.first[:-1] + choice].all(), seed
                assert fixed.cost_of(choice) == pytest.approx(cost), seed


@pytest.mark.parametrize("seed", usual(range(40), range(20)))
def test_the_same_problem_in_other_costs(seed: int) -> None:
    flat = usable(seed)
    if flat is None:
        return
    level = passed(flat, seed).levelled()
    for choice in choices(flat)[:40]:
        expected = flat.cost_of(choice)
        assert level.cost_of(choice) == pytest.approx(expected, rel=1e-9, abs=rounding(flat))


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("seeds", BLOCKS[:2], ids=str)
def test_multipliers_bound_what_fits_and_find_it(seeds: range, careful: bool) -> None:
    near = seen = 0
    for seed in seeds:
        flat = usable(seed)
        if flat is None or best(flat) == math.inf:
            continue
        state = Multipliers(flat)
        state.careful = careful
        for _ in range(25):
            state.step()
            if careful:  # no step is left standing that did not raise the bound
                np.testing.assert_array_equal(state.messages.multiplier, state.multiplier)
        seen += 1
        assert state.best.bound <= best(flat) + rounding(flat), seed
        if state.choice is not None:
            assert flat.fits(state.choice)
            assert state.cost == flat.cost_of(state.choice)
            near += state.cost <= best(flat) * 1.05
    assert near > 0.9 * seen > 20


@pytest.mark.parametrize("seed", usual(range(60), range(30)))
def test_changes_keep_what_fits_and_do_not_make_it_dearer(seed: int) -> None:
    flat = usable(seed)
    if flat is None:
        return
    costs = costs_of(flat)
    fitting = np.flatnonzero(np.isfinite(costs))
    if not len(fitting):
        return
    start = choices(flat)[fitting[seed % len(fitting)]]
    better = Descent(flat).improve(start)
    assert flat.fits(better)
    assert flat.cost_of(better) <= flat.cost_of(start) + rounding(flat)
    slack = passed(flat, seed).lower().slack
    around = Neighbours(flat, better, slack, seed, replace(DEFAULT, round_work=math.inf))
    proved = False
    for _ in range(12):
        proved = around.improve(rounding(flat), 10.0)
        assert flat.fits(around.choice)
        assert around.cost == flat.cost_of(around.choice)
    assert around.cost <= flat.cost_of(better)
    if proved:
        assert around.cost == pytest.approx(best(flat), rel=1e-6, abs=10 * rounding(flat))
