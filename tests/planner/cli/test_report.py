"""`meshwright report`: pages and traces, and every way in which there can be none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.cli.runner import Run


def test_report_writes_a_page_and_a_trace(run: Run, saved: Path) -> None:
    ran = run("report", saved, "-o", "plan.html", "--trace", "trace.json")
    assert (ran.status, ran.out) == (0, "written to plan.html and trace.json\n")
    assert Path("plan.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(Path("trace.json").read_text(encoding="utf-8"))["traceEvents"]


def test_report_names_its_files_as_json(run: Run, saved: Path) -> None:
    assert run("report", saved, "-o", "plan.html", "--json").answer == {"files": ["plan.html"]}


@pytest.mark.parametrize("output", ["no/plan.html", ".", "/dev/null"])
def test_a_page_that_cannot_be_written_is_one_line(run: Run, saved: Path, output: str) -> None:
    before = sorted(Path().rglob("*"))
    ran = run("report", saved, "-o", output)
    assert (ran.status, ran.out) == (2, "")
    assert "cannot be written" in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert sorted(Path().rglob("*")) == before


def test_nothing_is_written_if_the_trace_cannot_be(run: Run, saved: Path) -> None:
    assert run("report", saved, "-o", "plan.html", "--trace", "no/trace.json").status == 2
    assert not Path("plan.html").exists()


@pytest.mark.parametrize("text", [None, "", "[]", '{"format": "meshwright-plan", "version": 1}'])
def test_an_unreadable_plan_leaves_the_old_page(run: Run, text: str | None) -> None:
    Path("plan.html").write_text("old", encoding="utf-8")
    if text is not None:
        Path("bad.json").write_text(text, encoding="utf-8")
    ran = run("report", "bad.json", "-o", "plan.html")
    assert (ran.status, ran.out) == (2, "")
    assert Path("plan.html").read_text(encoding="utf-8") == "old"
    assert run("report", "bad.json", "-o", "plan.html", "--json").error["kind"] == "plan-file"


FILE: dict[str, object] = {
    "format": "meshwright-schedule", "version": 1, "devices": 2, "device": [0, 1],
    "microbatches": 1, "tasks": [[["forward", 0, 0], ["backward", 0, 0]],
                                 [["forward", 1, 0], ["backward", 1, 0]]],
    "costs": {"forward_s": [1.0, 1.0], "input_gradient_s": [1.0, 1.0],
              "weight_gradient_s": [1.0, 1.0]},
}  # fmt: skip


def test_the_command_draws_a_file(run: Run) -> None:
    Path("own.json").write_text(json.dumps(FILE), encoding="utf-8")
    assert run("report", "own.json", "-o", "own.html", "--trace", "own.trace.json").status == 0
    assert "Schedule own of own.json" in Path("own.html").read_text(encoding="utf-8")
    Path("bad.json").write_text(json.dumps(FILE | {"costs": None}), encoding="utf-8")
    assert run("report", "bad.json", "-o", "bad.html").status == 2
    assert not Path("bad.html").exists()
