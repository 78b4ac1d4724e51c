# pyright: basic
"""As few numbers of micro-batches are priced as tell which is best."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.common.errors import IndivisibleError, PlanError
from planner.pipeline.whole_program_prices import FEWER, MORE, Prices

GRID = (4, 16, 64, 256, 1024, 4096)


class Planner:
    """Prices whatever fits; too few or too many micro-batches do not."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.options = SimpleNamespace(microbatches=None)
        self.machine = SimpleNamespace(num_devices=8)
        self.say = lambda _: None

    def loss(self, count: int) -> None:
        if count > self.most:
            raise IndivisibleError("so few examples", kind="bad-batch")

    def whole(self, count: int, size: int) -> Any:
        if count < self.least:
            return PlanError("too large", kind="does-not-fit", needs_bytes=1.0)
        return SimpleNamespace(count=count, size=size)


def prices(least: int = 0, most: int = 10_000) -> Prices:
    estimates = SimpleNamespace(wholes={})
    trials = SimpleNamespace(
        planner=Planner(least, most), estimates=estimates, unable=set(), least=[]
    )
    middle = len(GRID) // 2
    found = Prices(trials, GRID, (2, 4), {FEWER: middle, MORE: middle})  # type: ignore[arg-type]
    found._price(middle)
    return found


@pytest.mark.parametrize("goal", GRID)
@pytest.mark.parametrize(("least", "most"), [(0, 10_000), (16, 10_000), (64, 1024)])
def test_the_best_of_all_is_among_those_known(goal: int, least: int, most: int) -> None:
    """If the step rises to both sides of one number, as far as any can be had."""
    found = prices(least, most)
    able = [m for m in GRID if least <= m <= most]

    def best(counts: tuple[int, ...]) -> int | None:
        rows = [(abs(GRID.index(m) - GRID.index(goal)), m) for m in counts if m in able]
        return min(rows)[1] if rows else None

    found.spread(best)
    assert best(found.counts) == best(GRID)


def test_what_is_far_from_the_best_is_not_priced() -> None:
    found = prices()
    found.spread(lambda counts: 64 if 64 in counts else min(counts))
    assert {m for m, _ in found.trials.estimates.wholes} == {256, 16}  # 64 lies between
    assert found.counts == (16, 64, 256)
    found.reach(512)
    assert found.counts == GRID[1:]


def test_everything_is_tried_where_nothing_fits() -> None:
    found = prices()
    found.spread(lambda counts: None)
    assert found.counts == GRID
