"""`simulate`: plans priced again, schedules run on paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.pipeline.schedule import build, write_schedule
from tests.planner.cli.runner import Run

PLAN_KEYS = {
    "step_s", "peak_bytes", "fits", "lower_bound_s", "gap", "stop", "mesh", "microbatches",
    "schedule", "stages", "baselines", "collectives", "substitutions", "warnings", "seconds",
}  # fmt: skip
STAGE_KEYS = {"layers", "devices", "mesh", "step_s", "peak_bytes", "recompute"}


def write_own(path: Path, *, memory: float = 100.0, drop: int = 0) -> None:
    write_schedule(path, build("1f1b", 4, 8))
    held = json.loads(path.read_text())
    held["costs"] = {"forward_s": [1.0] * 4, "input_gradient_s": [2.0] * 4,
                     "activation_bytes": [1.0] * 4}  # fmt: skip
    held["memory_bytes"] = [memory] * 4
    if drop:
        held["tasks"][0] = held["tasks"][0][:-drop]
    path.write_text(json.dumps(held))


def test_a_plan_is_priced_as_it_was(run: Run, saved: Path) -> None:
    ran = run("simulate", saved, "--json")
    assert ran.status == 0
    answer, (stored,) = ran.answer, json.loads(saved.read_text("utf-8"))["programs"]
    assert answer.keys() >= PLAN_KEYS
    assert answer["stored_step_s"] == stored["step_s"]
    assert answer["step_s"] == pytest.approx(stored["step_s"], rel=1e-9)
    assert answer["peak_bytes"] == pytest.approx(stored["peak_bytes"], rel=1e-9)
    assert len(answer["collectives"]) == len(stored["collectives"])
    assert "in the file" in run("simulate", saved).out


def test_a_schedule_has_the_keys_of_a_plan(run: Run) -> None:
    write_own(Path("own.json"))
    ran = run("simulate", "own.json", "--json")
    assert ran.status == 0
    answer = ran.answer
    assert answer.keys() >= PLAN_KEYS
    assert all(stage.keys() == STAGE_KEYS for stage in answer["stages"])
    assert answer["step_s"] == 33.0
    assert answer["baselines"]["gpipe"]["step_s"] == 33.0
    text = run("simulate", "own.json").out
    assert "33 s simulated" in text
    assert "critical path" in text


def test_a_schedule_over_its_memory_is_a_no(run: Run) -> None:
    write_own(Path("own.json"), memory=3.0)
    ran = run("simulate", "own.json", "--json")
    assert ran.status == 1
    assert ran.answer["fits"] is False


def test_what_cannot_run_is_one_error(run: Run, saved: Path) -> None:
    write_own(Path("own.json"), drop=1)
    ran = run("simulate", "own.json", "--json")
    assert ran.status == 2
    assert ran.error["kind"] == "bad-schedule"
    assert "lacks the backward of micro-batch 7 on chunk 0" in ran.error["message"]
    Path("torn.json").write_text(saved.read_text("utf-8")[:100])
    for path in ("torn.json", "absent.json", "."):
        assert run("simulate", path).status == 2
