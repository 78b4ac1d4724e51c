"""The last solve of the problem whose plan fits with its transient buffers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.sharding.search.room_for_buffers import NEAR, RoomForBuffers
from planner.solver.options import SolveOptions

LIMIT = 100.0
FIRST_S = 1.0


def plan_of(step_s: float, peak_bytes: float) -> Any:
    account = SimpleNamespace(step_s=step_s, peak_bytes=peak_bytes)
    solution = SimpleNamespace(choice=(3,))
    return SimpleNamespace(account=account, builder="builder", solution=solution)


class Problem:
    """With one reserved moment beside the choices of a plan."""

    built = None

    def lowered(self, choice: tuple[int, ...]) -> tuple[int, ...]:
        return (*choice, 0)


class Solver:
    """Answers each solve with one plan, and notes where it began."""

    def __init__(self, plan: Any) -> None:
        self.plan, self.starts = plan, list[tuple[int, ...]]()

    def solve(self, left: Any, limit: float, options: SolveOptions) -> Any:
        self.starts.append(options.start)
        return SimpleNamespace(choice=(4,), bound=0.5)

    def of(self, name: str, built: object, solution: object, builder: object = None) -> Any:
        return self.plan


def last_of(fitting: Any, further: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """The plan taken, and the starts of the last solves."""
    solver = Solver(further)
    room = RoomForBuffers(cast(Any, solver), LIMIT)
    left = Problem()
    room._found = lambda *_: [SimpleNamespace(plan=fitting, left=left, limit=LIMIT)]  # type: ignore[method-assign, list-item, return-value]
    options = SolveOptions()
    first = plan_of(FIRST_S, LIMIT + 1.0)
    return room.fitting("search", cast(Any, None), cast(Any, left), first, options, options), (
        solver.starts
    )


@pytest.mark.parametrize(
    ("step_s", "peak_bytes", "taken"),
    [(1.05, LIMIT, True), (1.15, LIMIT, False), (1.05, LIMIT + 1.0, False)],
)
def test_a_last_solve_is_taken_if_it_fits_and_is_faster(
    step_s: float, peak_bytes: float, taken: bool
) -> None:
    fitting, further = plan_of(1.1, LIMIT), plan_of(step_s, peak_bytes)
    found, starts = last_of(fitting, further)
    assert found is (further if taken else fitting)
    assert starts == [(3, 0)]


def test_a_plan_near_the_first_one_is_not_searched_further() -> None:
    fitting = plan_of(FIRST_S * (1 + NEAR), LIMIT)
    assert last_of(fitting, plan_of(0.9, LIMIT)) == (fitting, [])
