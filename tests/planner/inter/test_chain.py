"""Cuts into stages: against every cut there is, and on chains whose answer is plain."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.inter.chain import UNEVEN, Chain, Slot, cuts_by_share

WORK = st.lists(st.floats(1.0, 9.0), min_size=4, max_size=7)
SHARES = st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=2, max_size=3)


def chain_with(work: list[float], across: list[float]) -> Chain:
    slots = tuple(Slot("op", i, flops, ()) for i, flops in enumerate(work))
    return Chain(slots, (0.0, *across[: len(work) - 1], 0.0))


@given(WORK, st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=6, max_size=6), SHARES)
def test_cuts_are_the_best_of_all(work: list[float], across: list[float], shares: list[float]):
    chain = chain_with(work, across)
    step = UNEVEN * sum(work) / sum(shares)

    def price(cuts: tuple[int, ...]) -> tuple[int, float]:
        ends = itertools.pairwise(cuts)
        loads = (sum(work[a:b]) / share for (a, b), share in zip(ends, shares, strict=True))
        return math.ceil(max(loads) / step - 1e-9), sum(chain.across[c] for c in cuts[1:-1])

    inner = itertools.combinations(chain.places(0.0), len(shares) - 1)
    best = min(price((0, *cuts, len(work))) for cuts in inner)
    assert price(cuts_by_share(chain, shares)) == best


def test_equal_layers_are_cut_evenly():
    assert cuts_by_share(chain_with([1.0] * 8, [4.0] * 7), (1.0,) * 4) == (0, 2, 4, 6, 8)


def test_a_narrow_place_is_preferred_to_perfect_balance():
    chain = chain_with([1.0] * 100, [9.0] * 51 + [1.0] + [9.0] * 47)
    assert cuts_by_share(chain, (1.0, 1.0)) == (0, 52, 100)


@given(WORK, st.floats(0.0, 0.5))
def test_places_keep_their_distance(work: list[float], reach: float):
    chain = chain_with(work, [1.0, 3.0, 2.0, 1.0, 2.0, 3.0])
    places = chain.places(reach)
    assert list(places) == sorted(places)
    assert all(
        chain.work[b] - chain.work[a] >= reach * sum(work) for a, b in itertools.pairwise(places)
    )


def test_more_stages_than_layers_is_refused():
    with pytest.raises(PlanError, match="3 stages, but the program has 2 layers"):
        cuts_by_share(chain_with([1.0, 1.0], [1.0]), (1.0,) * 3)
