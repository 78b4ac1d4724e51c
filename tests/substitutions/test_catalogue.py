"""Every row of the catalogue: proved for all its ranks, axes and degrees, and true in JAX."""

from __future__ import annotations

import pytest

from substitutions import CATALOGUE, Row, RuleError, judge_row
from substitutions.text import parse_term, rule_of_text
from substitutions.verify.judge import ACCEPTED, refuted_again

ROWS = {row.name: row for members in CATALOGUE.values() for row in members}


def test_names_are_unique() -> None:
    assert len(ROWS) == sum(len(members) for members in CATALOGUE.values())


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_proved(name: str) -> None:
    found = judge_row(ROWS[name])
    assert found.verdict in ACCEPTED, found
    assert found.verdict != "fixed-degree", found


@pytest.mark.parametrize("name", ROWS)
def test_every_row_has_a_worth(name: str) -> None:
    row = ROWS[name]
    assert row.worth is not None, f"add to the row of {name}: worth={judge_row(row).worth()!r}"


@pytest.mark.parametrize("name", ROWS)
def test_only_rows_of_one_device_are_searched(name: str) -> None:
    assert not (ROWS[name].searched and ROWS[name].parallel)


@pytest.mark.parametrize("name", list(ROWS)[::4])
def test_more_numbers_do_not_refute_a_row(name: str) -> None:
    first = next(ROWS[name].rules())
    assert not refuted_again(first, 12)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_changes_something(name: str) -> None:
    assert ROWS[name].left != ROWS[name].right


def test_generic_rows_cover_all_axes() -> None:
    axes = {rule.name for rule in ROWS["relu-whole"].rules()}
    assert len(axes) == 2 + 3 + 4


def test_a_false_row_is_refuted() -> None:
    """A partial sum over devices of parts of an axis does not commute with one over copies."""
    row = Row("wrong", "sum[a](reduce[k](x))", "reduce[k](sum[a](x))", (), True, True)
    assert judge_row(row).verdict == "false"


@pytest.mark.parametrize(
    "text",
    ["relu(x", "relu(x))", "relu[1](x)", "concat[1(x, y)", "3", "relu x", "concat[q](x, y)", ""],
)
def test_malformed_rows_cannot_be_built(text: str) -> None:
    with pytest.raises(RuleError):
        rule_of_text("bad", text, "relu(x)", {"x": 2, "y": 2})


def test_terms_share_equal_parts() -> None:
    rule = rule_of_text("twice", "add(relu(x), relu(x))", "relu(x)", {"x": 1})
    assert len(rule.source) == 2
    assert parse_term("split[0](x).1").part == 1
