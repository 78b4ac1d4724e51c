# pyright: basic
"""Solves on one mesh: moments at which memory is watched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from planner.common.stop import Stop
from planner.sharding.search.on_mesh import MeshSearch
from planner.sharding.search.room_for_buffers import WATCHED
from planner.solver.options import DEFAULT, MOMENTS, SolveOptions
from planner.solver.problem import IntraSolution

LIMIT = 10.0
# stretches above the limit of 1, 3, 2 and 1 moments
MEMORY = np.array([11.0, 0.0, 12.0, 15.0, 13.0, 0.0, 14.0, 12.0, 0.0, 13.0, 9.0])


class Left:
    """A problem whose choice exceeds the limit at all moments that are not watched."""

    def __init__(self, moments: tuple[int, ...] = ()) -> None:
        self.moments = moments
        memory = np.array([LIMIT if t in moments else b for t, b in enumerate(MEMORY)])
        intervals = SimpleNamespace(memory=lambda _: memory)
        self.built = SimpleNamespace(moments=moments, live_intervals=intervals)

    def watching_also(self, moments: set[int]) -> Left:
        return Left(tuple(sorted({*self.moments, *moments})))

    def lifted(self, answer: IntraSolution) -> IntraSolution:
        return answer

    def followed(self, start: tuple[int, ...]) -> tuple[int, ...]:
        return start


def solved() -> tuple[IntraSolution, list[tuple[int, ...]], list[Any]]:
    """The answer, the moments that each solve watched, and its budget."""
    watched, budgets = [], []

    def answer(left: Left, limit: float, options: SolveOptions) -> IntraSolution:
        watched.append(left.moments)
        budgets.append(options.budget)
        bound = 1.0 + 0.1 * len(left.moments) * (options.budget == DEFAULT)
        return IntraSolution((0,), 3.0, bound, Stop.GAP, (), 0.0, ())

    search = cast(Any, MeshSearch.__new__(MeshSearch))
    search.scope = SimpleNamespace(
        deadline=float("inf"), work=SolveOptions().work, moments=set(), seconds={"solve": 0.0}
    )
    search._answer = answer
    return search.solve(cast(Any, Left()), LIMIT, SolveOptions()), watched, budgets


def test_one_moment_of_each_stretch_is_watched_the_worst_first() -> None:
    _, watched, _ = solved()
    assert watched[:2] == [(), (3, 6, 9)]
    assert len(watched[1]) == WATCHED


def test_quick_solves_find_moments_and_a_full_one_ends() -> None:
    found, watched, budgets = solved()
    over = {t for t, b in enumerate(MEMORY) if b > LIMIT}
    assert {*watched[-1]} == over
    assert budgets[0] == budgets[-1] == DEFAULT
    assert {*budgets[1:-1]} == {MOMENTS}
    assert found.bound == 1.0 + 0.1 * len(over)
