"""`meshwright rules audit`."""

from __future__ import annotations

from pathlib import Path

import pytest

from substitutions import CATALOGUE, VERDICTS, Row
from tests.planner.cli.runner import Run
from tests.substitutions.published import FLEXFLOW, FOLDER, TASO, rules


@pytest.mark.exhaustive
def test_audit_keeps_its_contract(run: Run) -> None:
    ran = run("rules", "audit", FOLDER / TASO, "--json")
    assert ran.status == 0
    assert ran.answer.keys() >= {"file", "rules", "counts"}
    assert tuple(ran.answer["counts"]) == VERDICTS
    assert sum(ran.answer["counts"].values()) == len(ran.answer["rules"]) == len(rules(TASO))
    keys = {"index", "name", "verdict", "worth", "condition", "counterexample", "seconds"}
    for i, row in enumerate(ran.answer["rules"]):
        assert row.keys() >= keys
        assert row["index"] == i
        assert (row["condition"] is None) == (row["verdict"] == "proved")
        assert row["worth"].keys() == {"floats", "integers", "bound"}


@pytest.mark.exhaustive
def test_audit_says_no_by_its_status(run: Run) -> None:
    ran = run("rules", "audit", FOLDER / FLEXFLOW)
    assert ran.status == 1
    assert "640 rules: " in ran.out


@pytest.mark.parametrize("name", ["absent.json", "torn.json", "text.txt"])
def test_audit_of_what_is_no_rule_file_is_one_line(run: Run, name: str) -> None:
    if name != "absent.json":
        Path(name).write_text('{"_t": "RuleColl', encoding="utf-8")
    ran = run("rules", "audit", name)
    assert (ran.status, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert run("rules", "audit", name, "--json").error["kind"] == "rules"


def test_list_has_the_whole_catalogue(run: Run) -> None:
    rows = run("rules", "list", "--json").answer["rules"]
    names = [row["name"] for row in rows]
    assert {row["worth"]["floats"] for row in rows} == {"exact", "reassociated", "bounded"}
    assert len(set(names)) == len(names) == sum(map(len, CATALOGUE.values()))
    assert "row-parallel" in run("rules", "list").out


def test_list_has_rows_without_a_worth(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (Row("relu-once", "relu(relu(x))", "relu(x)"),)
    monkeypatch.setattr("planner.cli.rules.CATALOGUE", {"new": rows})
    (row,) = run("rules", "list", "--json").answer["rules"]
    assert row["worth"] is None
    assert "relu-once" in run("rules", "list").out


def test_verify_proves_the_catalogue(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it, as each row has a test of its own."""
    part = {family: rows[:2] for family, rows in CATALOGUE.items()}
    monkeypatch.setattr("planner.cli.rules.CATALOGUE", part)
    ran = run("rules", "verify", "--json")
    assert ran.status == 0
    assert ran.answer.keys() >= {"rules", "counts"}
    assert sum(ran.answer["counts"].values()) == len(ran.answer["rules"]) > len(part)
