"""Hand-written divisions: what they promise, and that none is better than the search's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import parse_cluster
from planner.pipeline.cut.chain import Chain, Slot
from planner.pipeline.divide.by_hand import (
    RULES,
    equal_layers,
    equal_operations,
    equal_work,
    hand_written,
)
from planner.pipeline.divide.dynamic_programme import EXACT, divide, least_most
from planner.pipeline.divide.run_costs import Shares

from .test_dynamic_programme import PLACES, SECONDS, space_of

WORK = st.lists(st.floats(1.0, 9.0), min_size=6, max_size=24)


def shares_of(work: list[float], stack: range = range(0)) -> Shares:
    """Of slots with so much work; those of the stack are iterations of one loop."""
    slots = tuple(
        Slot("op", stack.start if i in stack else 100 + i, flops, (), products=flops)
        for i, flops in enumerate(work)
    )
    across = (0.0, *(1.0 for _ in work[1:]), 0.0)
    return Shares(Chain(slots, across), parse_cluster("8xh100"))


@given(WORK)
def test_rules_begin_and_end_with_the_program(work: list[float]):
    shares = shares_of(work)
    found = hand_written(shares, 8, (1, 2, 4, 8), (2, 3, 4))
    assert {p for _, p in found} <= {2, 4}  # three stages do not divide eight devices
    for (_, p), places in found.items():
        assert (places[0], places[-1], len(places)) == (0, shares.count - 1, p + 1)
        assert all(a < b for a, b in itertools.pairwise(places))
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("count", [2, 4])
def test_layers_of_a_loop_are_counted(count: int):
    shares = shares_of([1.0] * 14, range(2, 10))
    places = [shares.places[j] for j in equal_layers(shares, count)]
    assert places == [0, *(2 + 8 * k // count for k in range(1, count)), 14]


@given(WORK)
def test_each_rule_is_the_nearest_to_what_it_makes_equal(work: list[float]):
    shares = shares_of(work)
    cut = shares.places[equal_operations(shares, 2)[1]]
    assert all(abs(cut - len(work) / 2) <= abs(c - len(work) / 2) for c in shares.places)
    at, half = shares.chain.work, sum(work) / 2
    cut = shares.places[equal_work(shares, 2)[1]]
    assert all(abs(at[cut] - half) <= abs(at[c] - half) + 1e-9 for c in shares.places)
    assert set(RULES) == {"equal layers", "equal operations", "equal work"}


@settings(max_examples=40, deadline=None)
@given(SECONDS, st.integers(1, 8), st.floats(0.0, 2.0))
def test_no_division_of_the_search_is_above_one_by_hand(work: list[int], count: int, wide: float):
    space = space_of(work, count, 40.0, wide, "1f1b")
    best, _ = divide(space, (2, 4))
    assert best is not None
    for p in (2, 4):
        for inner in itertools.combinations(range(1, PLACES - 1), p - 1):
            one = space.estimated((0, *inner, PLACES - 1), (8 // p,) * p)
            assert best.step_s <= one.step_s * (1 + EXACT)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_slowest_stage_is_as_fast_as_may_be(seed: int, stages: int):
    rng, n = np.random.default_rng(seed), 6
    seconds = [
        np.where(np.tri(n, dtype=bool) | (rng.random((n, n)) < 0.2), np.inf, rng.random((n, n)))
        for _ in range(stages)
    ]
    places, slowest = least_most(seconds)
    every = [
        max(seconds[s][a, b] for s, (a, b) in enumerate(itertools.pairwise((0, *inner, n - 1))))
        for inner in itertools.combinations(range(1, n - 1), stages - 1)
    ]
    assert slowest == min(every, default=np.inf)
    if np.isfinite(slowest):
        at = list(itertools.pairwise(places))
        assert max(seconds[s][a, b] for s, (a, b) in enumerate(at)) == slowest
