"""Sides that are not reduced: jobs at once say what jobs in turn say, and change nothing else."""

from __future__ import annotations

from functools import partial

import numpy as np

from planner.intra.branches import heavy_options
from planner.intra.prices import Prices
from planner.intra.sides import Outcome, Side, at_once, further, side_of
from tests.planner.intra.flats import best, rounding
from tests.planner.intra.test_branches import priced


def sides(seed: int) -> tuple[Side, list[Side]] | None:
    """A problem as a side, and its two sides."""
    prices = priced(seed)
    parts = None if prices is None else heavy_options(prices)
    if prices is None or parts is None:
        return None
    whole = Side(prices.best.bound, prices, ())
    wanted = best(prices.flat) * 1.1 + rounding(prices.flat)
    made = [side_of(whole, held, wanted) for held in parts]
    return whole, [each for each in made if each is not None]


def said(outcome: Outcome) -> tuple[float, bool, list[list[int]], float]:
    bound = np.inf if outcome.side is None else outcome.side.bound
    growing = outcome.side is not None and outcome.side.growing
    return bound, growing, [choice.tolist() for choice in outcome.found], outcome.work


def test_two_at_once_are_two_in_turn() -> None:
    seen = 0
    for seed in range(200):
        once, turn = sides(seed), sides(seed)
        if once is None or turn is None or not np.isfinite(best(once[0].prices.flat)):
            continue
        seen += 1
        wanted = best(once[0].prices.flat) * 1.1 + rounding(once[0].prices.flat)
        before = once[0].prices.messages.mass.copy()
        together = at_once([partial(further, side, 4, wanted) for side in once[1]])
        apart = [further(side, 4, wanted) for side in turn[1]]
        assert [said(each) for each in together] == [said(each) for each in apart], seed
        assert (once[0].prices.messages.mass == before).all()
    assert seen > 20


def test_a_side_says_when_it_still_grows() -> None:
    """From the first messages bounds grow; where little is missing of what is wanted, they end."""
    grown = ended = 0
    for seed in range(200):
        made = sides(seed)
        least = np.inf if made is None else best(made[0].prices.flat)
        if made is None or not np.isfinite(least):
            continue
        flat = made[0].prices.flat
        first = Prices(flat)
        after = further(Side(first.best.bound, first, ()), 3, np.inf).side
        assert after is not None
        assert after.bound <= least + rounding(flat)
        first = Prices(flat)
        near = further(Side(first.best.bound, first, ()), 3, least + 10 * rounding(flat)).side
        assert near is not None, seed
        grown += near.growing
        for side in made[1]:
            assert further(side, 2, side.bound).side is None  # nothing below its bound is wanted
            ended += 1
    assert grown > 5
    assert ended > 20


def test_no_job_and_one_job() -> None:
    assert at_once([]) == []
    only = Outcome(None, (), 1.0)
    assert at_once([lambda: only]) == [only]
