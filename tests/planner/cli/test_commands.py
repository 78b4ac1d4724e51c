"""`explain`, `compare`, `clusters`, `version`, and what all commands have in common."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import costmodel
from planner import VERSION
from tests.planner.cli.runner import Run


def test_explain_says_what_alternatives_add(run: Run, saved: Path) -> None:
    ran = run("explain", saved, "params/w1")
    assert ran.status == 0
    assert ran.out.startswith("params/w1: [")
    assert "instead" in ran.out


def test_explain_json_keeps_its_contract(run: Run, saved: Path) -> None:
    answer = run("explain", saved, "w1", "--json").answer
    assert answer.keys() == {"name", "text", "matches", "more"}
    (match,) = answer["matches"]
    assert match["name"] == "params/w1"
    assert match.keys() == {
        "name", "chosen", "forced", "factors", "memory_bytes", "alternatives", "unsolved",
        "better_s", "gap",
    }  # fmt: skip
    added = [a["added_s"] for a in match["alternatives"] if a["added_s"] is not None]
    assert added == sorted(added)
    assert min(added) >= -1e-12  # the plan was proved optimal on this mesh


def test_explain_names_the_pin(run: Run) -> None:
    pins = ("--pin", "params/*=-,8", "--forbid", "batch/x=0", "--no-baselines", "-o", "p.json")
    run("plan", "step.py:sgd", "-c", "8xh100", *pins)
    assert "pinned as [-,8] by 'params/*'" in run("explain", "p.json", "params/w1").out
    assert "dimension 0 is kept whole by 'batch/x'" in run("explain", "p.json", "batch/x").out


def test_explain_of_an_op_has_its_factors(run: Run, saved: Path) -> None:
    answer = run("explain", saved, "dot_general", "--json").answer
    assert len(answer["matches"]) == 3
    assert all("->" in match["factors"] for match in answer["matches"])
    assert answer["more"]


def test_explain_without_a_name_is_about_the_plan(run: Run, saved: Path) -> None:
    answer = run("explain", saved, "--json").answer
    assert answer["name"] == ""
    (program,) = json.loads(saved.read_text("utf-8"))["programs"]
    assert answer["step_s"] == pytest.approx(program["step_s"])
    assert answer["text"].startswith("step ")


def test_explain_suggests_the_name_that_was_meant(run: Run, saved: Path) -> None:
    ran = run("explain", saved, "params/w3")
    assert (ran.status, ran.out) == (2, "")
    assert "did you mean 'params/w" in ran.err
    assert run("explain", saved, "params/w3", "--json").error["kind"] == "unknown-name"


BAD_FILES = {
    "absent.json": None,
    "empty.json": "",
    "cut.json": '{"format": "meshwright-plan", "vers',
    "other.json": '{"format": "something else"}',
    "newer.json": '{"format": "meshwright-plan", "version": 99, "planner": "9.0"}',
    "hollow.json": '{"format": "meshwright-plan", "version": 1}',
    "list.json": "[]",
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_an_unreadable_plan_is_one_line(run: Run, saved: Path, name: str) -> None:
    text = BAD_FILES[name]
    if text is not None:
        Path(name).write_text(text, encoding="utf-8")
    for command in (("explain", name, "w1"), ("compare", saved, name), ("compare", name, saved)):
        ran = run(*command)
        assert (ran.status, ran.out) == (2, "")
        assert len(ran.err.splitlines()) == 1
        assert name in ran.err
        assert run(*command, "--json").error["kind"] == "plan-file"


def test_compare_shows_what_differs(run: Run, saved: Path) -> None:
    pin = ("--pin", "params/w1=-,8", "--mesh", "8", "--no-baselines", "-o", "pinned.json")
    assert run("plan", "step.py:sgd", "-c", "8xh100", *pin).status == 0
    ran = run("compare", saved, "pinned.json")
    assert ran.status == 0
    assert "plan.json" in ran.out
    assert "[-, x=8]" in ran.out
    answer = run("compare", saved, "pinned.json", "--json").answer
    assert answer["verdict"].startswith("b is ")
    assert answer.keys() == {
        "same_program", "difference", "a", "b", "collectives", "arguments", "changes", "verdict"
    }  # fmt: skip
    assert answer["same_program"] is True
    assert answer["a"]["step_s"] <= answer["b"]["step_s"]
    rows = {row["name"]: row["b"] for row in answer["arguments"]}
    assert rows["params/w1"] == "[-, x=8]"


def test_a_plan_compares_equal_to_itself(run: Run, saved: Path) -> None:
    answer = run("compare", saved, saved, "--json").answer
    assert answer["a"] == answer["b"]
    assert answer["arguments"] == []
    assert all(row["a"] == row["b"] for row in answer["collectives"])


def test_plans_of_two_programs_are_a_negative_answer(run: Run, saved: Path) -> None:
    run("plan", "step.py:adam", "-c", "8xh100", "--no-baselines", "-o", "adam.json")
    ran = run("compare", saved, "adam.json")
    assert ran.status == 1
    assert "plans of different programs" in ran.out
    again = run("compare", saved, "adam.json", "--json")
    assert again.status == 1
    assert again.answer["same_program"] is False
    assert again.answer["difference"]


def test_other_microbatches_are_the_same_program(run: Run) -> None:
    for count in ("1", "2"):
        options = ("--microbatches", count, "--no-baselines", "-o", f"{count}.json")
        assert run("plan", "step.py:adam", "-c", "8xh100", *options).status == 0
    answer = run("compare", "1.json", "2.json", "--json").answer
    assert answer["same_program"] is True
    assert "1 and 2 micro-batches" in answer["difference"]


def test_clusters_lists_every_profile(run: Run) -> None:
    ran = run("clusters")
    assert ran.status == 0
    for name in ("h100", "v100-16gb", "gb200", "host"):
        assert name in ran.out
    answer = run("clusters", "--json").answer
    assert {"h100", "host"} <= {row["name"] for row in answer["clusters"]}
    assert all(row["source"] and row["memory_bytes"] > 0 for row in answer["clusters"])


def test_version(run: Run) -> None:
    assert run("version").out.startswith(f"meshwright {VERSION} (JAX ")
    assert run("version", "--json").answer["version"] == VERSION


def test_a_defect_is_one_line_and_its_traceback_is_for_the_asking(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(costmodel, "list_clusters", broken)
    ran = run("clusters")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("error: meshwright: ZeroDivisionError: a defect")
    assert len(ran.err.splitlines()) == 1
    assert run("clusters", "--json").error["kind"] == "internal"
    shown: list[BaseException] = []
    monkeypatch.setattr("traceback.print_exception", shown.append)
    assert run("--traceback", "clusters").err == ran.err
    assert [str(error) for error in shown] == ["a defect"]


COMMANDS = ("plan", "explain", "compare", "clusters", "version")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert f"\n    meshwright {command}" in ran.out
    assert "--json" in ran.out


def test_help_lists_the_commands_and_completion(run: Run) -> None:
    ran = run("--help")
    assert ran.status == 0
    assert all(f"\n  {command}  " in ran.out for command in COMMANDS)
    assert "--install-completion" in ran.out


def test_no_command_is_wrong_use_and_shows_the_help(run: Run) -> None:
    ran = run()
    assert (ran.status, ran.out) == (2, "")
    assert "Usage: meshwright" in ran.err


def test_an_unknown_command_is_one_line(run: Run) -> None:
    ran = run("plna", "x")
    assert (ran.status, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert run("plna", "--json").error["kind"] == "usage"
