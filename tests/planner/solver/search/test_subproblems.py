"""Sides that are not reduced: jobs at once say what jobs in turn say, and change nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from planner.solver.bound.memory_multipliers import Multipliers
from planner.solver.search.subproblems import Outcome, Subproblem, at_once, further, subproblem_of
from tests.planner.solver.flats import best, rounding
from tests.planner.solver.search.test_branch_and_bound import halved


def split() -> Iterator[tuple[float, Subproblem, list[Subproblem]]]:
    """The cost of the best choice, a problem as a side, and its two sides."""
    for _, multipliers, parts in halved(range(200)):
        least = best(multipliers.flat)
        if np.isfinite(least):
            whole = Subproblem(multipliers.best.bound, multipliers, ())
            made = [
                subproblem_of(whole, held, least * 1.1 + rounding(multipliers.flat))
                for held in parts
            ]
            yield least, whole, [each for each in made if each is not None]


def said(outcome: Outcome) -> tuple[float, bool, list[list[int]], float]:
    bound = np.inf if outcome.subproblem is None else outcome.subproblem.bound
    growing = outcome.subproblem is not None and outcome.subproblem.growing
    return bound, growing, [choice.tolist() for choice in outcome.found], outcome.work


def test_two_at_once_are_two_in_turn() -> None:
    seen = 0
    for (least, whole, once), (_, _, turn) in zip(split(), split(), strict=True):
        seen += 1
        wanted = least * 1.1 + rounding(whole.multipliers.flat)
        before = whole.multipliers.messages.mass.copy()
        together = at_once([partial(further, subproblem, 4, wanted) for subproblem in once])
        apart = [further(subproblem, 4, wanted) for subproblem in turn]
        assert [said(each) for each in together] == [said(each) for each in apart]
        assert (whole.multipliers.messages.mass == before).all()
    assert seen > 20


def test_a_side_says_when_it_still_grows() -> None:
    """From the first messages bounds grow; a side with nothing that is wanted is none."""
    grown = ended = 0
    for least, whole, subproblems in split():
        flat = whole.multipliers.flat
        first = Multipliers(flat)
        after = further(
            Subproblem(first.best.bound, first, ()), 3, least + 10 * rounding(flat)
        ).subproblem
        assert after is not None
        assert after.bound <= least + rounding(flat)
        grown += after.growing
        for subproblem in subproblems:
            assert further(subproblem, 2, subproblem.bound).subproblem is None
            ended += 1
    assert grown > 5
    assert ended > 20


def test_no_job_and_one_job() -> None:
    assert at_once([]) == []
    only = Outcome(None, (), 1.0)
    assert at_once([lambda: only]) == [only]
