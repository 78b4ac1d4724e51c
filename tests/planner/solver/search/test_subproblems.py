"""Sides that are not reduced: jobs at once say what jobs in turn say, and change nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from planner.solver.bound.memory_multipliers import Prices
from planner.solver.search.subproblems import Outcome, Side, at_once, further, side_of
from tests.planner.solver.flats import best, rounding
from tests.planner.solver.search.test_branch_and_bound import halved


def split() -> Iterator[tuple[float, Side, list[Side]]]:
    """The cost of the best choice, a problem as a side, and its two sides."""
    for _, prices, parts in halved(range(200)):
        least = best(prices.flat)
        if np.isfinite(least):
            whole = Side(prices.best.bound, prices, ())
            made = [side_of(whole, held, least * 1.1 + rounding(prices.flat)) for held in parts]
            yield least, whole, [each for each in made if each is not None]


def said(outcome: Outcome) -> tuple[float, bool, list[list[int]], float]:
    bound = np.inf if outcome.side is None else outcome.side.bound
    growing = outcome.side is not None and outcome.side.growing
    return bound, growing, [choice.tolist() for choice in outcome.found], outcome.work


def test_two_at_once_are_two_in_turn() -> None:
    seen = 0
    for (least, whole, once), (_, _, turn) in zip(split(), split(), strict=True):
        seen += 1
        wanted = least * 1.1 + rounding(whole.prices.flat)
        before = whole.prices.messages.mass.copy()
        together = at_once([partial(further, side, 4, wanted) for side in once])
        apart = [further(side, 4, wanted) for side in turn]
        assert [said(each) for each in together] == [said(each) for each in apart]
        assert (whole.prices.messages.mass == before).all()
    assert seen > 20


def test_a_side_says_when_it_still_grows() -> None:
    """From the first messages bounds grow; a side with nothing that is wanted is none."""
    grown = ended = 0
    for least, whole, sides in split():
        flat = whole.prices.flat
        first = Prices(flat)
        after = further(Side(first.best.bound, first, ()), 3, least + 10 * rounding(flat)).side
        assert after is not None
        assert after.bound <= least + rounding(flat)
        grown += after.growing
        for side in sides:
            assert further(side, 2, side.bound).side is None
            ended += 1
    assert grown > 5
    assert ended > 20


def test_no_job_and_one_job() -> None:
    assert at_once([]) == []
    only = Outcome(None, (), 1.0)
    assert at_once([lambda: only]) == [only]
