# pyright: basic
"""Grouped products with matrices that are not finite: the stated difference, and nothing beyond."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from benchmarks.fuzz.case import Case, run
from benchmarks.fuzz.program import Argument, Program, Step
from planner.emit.group_tiles import Products
from tests.helpers_exhaustive import usual

GIVEN = (Argument((6, 4), "float32"), Argument((4, 4, 3), "float32"), Argument((4,), "int32"))
GROUPED = Program(GIVEN, (Step("ragged_dot", (0, 1, 2)), Step("is_finite", (3,))), (3, 4))
DRAWS = range(1)


def verdicts() -> set[str]:
    return {run(Case(GROUPED, (2,), draw)).verdict for draw in DRAWS}


def test_rows_that_only_other_groups_spoil_are_told_apart() -> None:
    assert verdicts() == {"own groups"}


@pytest.mark.parametrize("broken", usual(["lost", "spoilt", "shifted"], ["lost", "spoilt"]))
def test_any_other_difference_is_wrong(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    right = Products.rows

    def rows(self: Products, *args: Any) -> Any:
        found = right(self, *args)
        if broken == "lost":  # NaN that a row's own group makes
            return jnp.nan_to_num(found)
        return found.at[0, 0].set(jnp.nan) if broken == "spoilt" else jnp.roll(found, 1, 0)

    monkeypatch.setattr(Products, "rows", rows)
    assert verdicts() == {"wrong"}
