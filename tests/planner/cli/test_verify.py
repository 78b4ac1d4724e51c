"""`meshwright verify`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.planner.cli.runner import Run
from tests.planner.sealing import resealed

HOST = ("--compiler", "host")


def test_verify_json_keeps_its_contract(run: Run, saved: Path) -> None:
    ran = run("verify", "step.py:sgd", saved, *HOST, "--json")
    assert ran.status == 0
    answer = ran.answer
    assert answer["ok"] is True
    assert answer["compiler"] == "host"
    assert answer["unexplained_bytes"] == 0
    for row in answer["collectives"]:
        assert row.keys() >= {"kind", "group_size", "predicted_bytes", "compiled_bytes", "note"}
    assert answer["memory"].keys() >= {"predicted_peak_bytes", "compiled_peak_bytes"}


def test_a_plan_that_says_something_else_fails(run: Run) -> None:
    pins = ("--pin", "params/*=8,-", "--mesh", "8", "--no-baselines", "-o", "p.json")
    assert run("plan", "step.py:sgd", "-c", "8xh100", *pins).status == 0
    data = json.loads(Path("p.json").read_text("utf-8"))
    (program,) = data["programs"]
    assert program["collectives"]
    for row in program["collectives"]:
        row["bytes"] *= 3
    Path("p.json").write_text(json.dumps(resealed(data)), encoding="utf-8")
    ran = run("verify", "step.py:sgd", "p.json", *HOST)
    assert ran.status == 1
    assert "NOT verified" in ran.out
    assert "others than the plan says" in ran.out


def test_the_optimizer_of_a_target_is_bound(run: Run) -> None:
    run("plan", "step.py:adam", "-c", "8xh100", "-o", "p.json", "--no-baselines")
    assert run("verify", "step.py:adam", "p.json", *HOST).status == 0


def test_another_function_than_the_plans(run: Run, saved: Path) -> None:
    ran = run("verify", "step.py:adam", saved, *HOST, "--json")
    assert ran.status == 1
    assert ran.error["kind"] == "differs"


def test_wrong_use(run: Run, saved: Path) -> None:
    assert run("verify", "step.py:absent", saved, *HOST).status == 2
    assert run("verify", "step.py:sgd", "absent.json", *HOST).status == 2
    ran = run("verify", "step.py:sgd", saved, "--compiler", "tpu", "--json")
    assert ran.status == 2
    assert ran.error["kind"] == "bad-option"
    assert "host, gpu-aot, gpu" in ran.error["remedy"]
