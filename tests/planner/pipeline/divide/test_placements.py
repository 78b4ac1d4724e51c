# pyright: basic
"""Divisions that are simulated in the order of their bounds, beside all of them simulated."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.pipeline.divide import placements
from planner.pipeline.divide.placed import Placed, rows_of
from planner.pipeline.divide.placements import Placements, equal_groups
from planner.pipeline.schedule import ONE_EACH, TURNS, family_of, in_turns, late_families
from planner.pipeline.whole_program_prices import price_wholes
from tests.planner.pipeline.test_search import search_of

SCHEDULES = ("1f1b", "1f1b-eager", "1f1b-deep", "gpipe", "zb-h1", "zb-h2", "interleaved", "zb-v")
WAYS = [
    (schedules, turns)
    for schedules in (SCHEDULES, ("1f1b", "gpipe", "interleaved"))
    for turns in (ONE_EACH, *dict.fromkeys(t for name in schedules for t in TURNS.get(name, ())))
]


def placed(schedules):
    """Divisions of a chain of unequal layers, some with stages that were planned."""
    search = search_of((64, 16, 48, 96, 32), None, schedules=schedules)
    price_wholes(search.trials, search.machine, search.counts, search.kinds)
    return search, Placements(search.candidates, schedules)


@pytest.mark.parametrize(("schedules", "turns"), WAYS)
def test_the_shortest_division_is_found_without_simulating_all(schedules, turns, monkeypatch):
    search, found = placed(schedules)
    n = search.shares.count
    simulated = []
    simulate = Placements._simulated_s
    monkeypatch.setattr(
        Placements, "_simulated_s", lambda *a: (simulated.append(len(a[-1])), simulate(*a))[1]
    )
    every = 0
    for like in equal_groups(n - 1, search.machine.num_devices, (2, 4), (turns,)):
        stages = len(like.sizes)
        rows = itertools.combinations(range(1, n - 1), stages - 1)
        places = np.array([(0, *row, n - 1) for row in rows])
        for family in dict.fromkeys(map(family_of, in_turns(schedules, turns))):
            for count in (4, 8):
                cases = found._cases(count, family, like, places)
                _, steps_s = found.steps_s(count, family, like, places)
                every += len(places)
                assert (cases.least_s <= steps_s).all()
                assert found.least_s(count, like) <= steps_s.min()
                simulated.clear()
                first, new = found._shortest(count, family, like, places, np.inf, set())
                assert first is not None
                assert first.step_s == steps_s.min()
                assert first == new
                assert sum(simulated) <= len(places)
                _, other = found._shortest(
                    count, family, like, places, np.inf, {(count, first.key)}
                )
                rest = np.delete(steps_s, steps_s.argmin())
                assert (None if other is None else other.step_s) == min(rest, default=None)
                assert found._shortest(count, family, like, places, first.step_s, set()) == (
                    None, None,
                )  # fmt: skip
    assert every > 0


def test_a_bound_knows_of_waiting_weight_gradients():
    each = np.array([[[1.0], [1.0]], [[0.0], [1.0]], [[2.0], [1.0]], [[0.5], [0.5]]])
    into_s = np.array([[0.0], [0.25]])
    bound = placements.least_simulated_s(4, each, into_s, (0, 1), late=True)
    joined = placements.least_simulated_s(4, each, into_s, (0, 1), late=False)
    # the second stage waits for one forward pass and the transfer, and works on four micro-batches;
    # then a gradient goes back, and the first stage has a weight gradient and its update
    assert bound == pytest.approx(max(4 * 3 + 0.5, 1.25 + 4 * 3 + 0.5, 1.25 + 4 * 2 + 0.25 + 2.5))
    assert joined == pytest.approx(1.25 + 4 * 3 + 0.25 + 2.0 + 0.5)
    assert late_families(("zb-h1",))


@pytest.mark.parametrize("most", [placements.MOST_PLACED, 3])
def test_the_best_of_all_rows_is_that_of_each_row_by_itself(most, monkeypatch):
    monkeypatch.setattr(placements, "MOST_PLACED", most)
    search, found = placed(SCHEDULES)
    turns = [ONE_EACH, *dict.fromkeys(t for name in SCHEDULES for t in TURNS.get(name, ()))]
    likes = equal_groups(search.shares.count - 1, search.machine.num_devices, (2, 4), turns)
    rows, tried, limit_s = rows_of((2, 4, 8), likes), set(), 1.0
    together = Placed(found, rows)
    asked = []
    for _ in range(6):
        each = [(count, found.best(count, like, limit_s, tried)) for count, like in rows]
        steps_s = [(row[1].step_s, count) for count, row in each if row is not None]
        best = together.best(limit_s, tried)
        assert best is not None
        count, _, one = best
        assert (one.step_s, count) == min(steps_s)
        asked.append(len(steps_s))
        tried.add((count, one.key))
        together.forget(count)
    assert asked[0] > 1
    assert together.best(one.step_s * 1e-3, tried) is None
