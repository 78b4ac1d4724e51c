"""Plans in stages on the command line: made, shown, simulated, compared, exported, verified."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner.common.units_text import bytes_text
from tests.planner.cli.runner import Run
from tests.planner.pipeline.unproved import without_proof

PLAN = ("plan", "step.py:adam", "-c", "2xh100", "--no-baselines")


@without_proof()
def test_a_pipeline_goes_through_every_command(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    made = run(
        *PLAN, "--pipeline", "2", "--schedules", "1f1b,gpipe", "--microbatches", "4", "-o", path,
        "--json",
    ).answer  # fmt: skip
    assert [stage["devices"] for stage in made["stages"]] == [[0, 1], [1, 2]]
    assert made["microbatches"] == 4
    assert made["seconds"].keys() == {"trace", "substitute", "build", "solve", "inter", "total"}
    assert made["schedule"] in ("1f1b", "gpipe")
    again = run("simulate", path, "--json").answer
    assert again["step_s"] == pytest.approx(made["step_s"])
    assert again["stages"] == made["stages"]
    assert run("report", path, "-o", tmp_path / "r.html").status == 0
    assert run("compare", path, path, "--json").answer["same_program"] is True
    assert "stage 1" in run("explain", path).out
    asked = run("explain", path, "--schedules", "gpipe", "-o", tmp_path / "q.json", "--json").answer
    assert asked["same_program"] is True
    assert run("simulate", tmp_path / "q.json", "--json").answer["schedule"] == "gpipe"
    assert run("explain", path, "--memory", "1kB").status == 1
    wrong = run("explain", path, "9:params", "--json")
    assert wrong.status == 2
    assert wrong.answer["error"]["kind"] == "unknown-tensor"
    assert run("export", path, "--to", "schedule", "-o", tmp_path / "s.json").status == 0
    refused = run("export", path, "--to", "torch", "-o", tmp_path / "t.json", "--json")
    assert refused.status == 2
    assert "stages" in refused.answer["error"]["message"]
    checked = run("verify", "step.py:adam", path, "--compiler", "host", "--json")
    assert checked.status == 0
    assert checked.answer["ok"] is True
    assert len(checked.answer["transfers"]) == 2
    shown = run("verify", "step.py:adam", path, "--compiler", "host")
    assert "its memory here is that of one micro-batch in flight" in shown.out
    for s, stage in enumerate(planner.load(path).file.stages):
        assert f"{bytes_text(stage.peak_bytes)} (stage {s})" in shown.out


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        (("--pipeline", "on"), "Options.pipeline"),
        (("--pipeline", "0"), "Options.pipeline"),
        (("--pipeline", "3"), "pipeline"),
        (("--pipeline", "1"), "pipeline"),
        (("--pipeline", "2", "--pin", "params/*=[-,2]"), "Options.pins"),
        (("--pipeline", "2", "--schedules", "interleaved"), "Options.schedules"),
        (("--pipeline", "2", "--schedules", "best"), "Options.schedules"),
        (("--pipeline", "2", "--microbatches", "5"), ""),
    ],
)
def test_wrong_stages_are_refused(run: Run, flags: tuple[str, ...], where: str) -> None:
    ran = run(*PLAN, *flags, "--json")
    assert ran.status == 2
    error = ran.answer["error"]
    assert where in error["where"]
    assert error["remedy"]
