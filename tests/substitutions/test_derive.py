"""Data, column, row, sequence, head and expert parallelism follow from plain ops by rows."""

from __future__ import annotations

import pytest

from substitutions import CATALOGUE, judge, judge_row
from substitutions.catalogue.row import Row
from tests.helpers_exhaustive import usual
from tests.substitutions.derive import STEPS, TARGETS, derive

ROWS = {row.name: row for family in ("derived", "collectives") for row in CATALOGUE[family]}


@pytest.mark.parametrize("name", usual(TARGETS, {*TARGETS} - {"data", "data, two layers"}))
def test_parallel_programs_are_derived_and_proved(name: str) -> None:
    target = TARGETS[name]
    found = derive(target)
    assert found is not None
    assert found.rows
    assert set(found.rows) <= ROWS.keys()
    assert all(judge_row(ROWS[row]).verdict.startswith("proved") for row in found.rows)
    (rule,) = target.rules()
    assert judge(rule).accepted  # a second proof, which knows nothing of rows


def test_what_is_false_is_not_derived() -> None:
    wrong = Row(
        "wrong", "linear(x, w)", "combine[1, k](linear(partition[2, k](x), partition[2, k](w)))",
        parallel=True,
    )  # fmt: skip
    assert derive(wrong) is None


def test_steps_are_rows() -> None:
    assert set(STEPS) <= ROWS.keys()
