"""`meshwright reshard`, and writing the plan that would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planner.cli.runner import Run


@pytest.fixture
def four(run: Run, saved: Path, tmp_path: Path) -> Path:
    path = tmp_path / "four.json"
    assert run("explain", saved, "--devices", "4", "-o", path).status == 0
    return path


def test_what_moves_is_shown_and_summed_up(run: Run, saved: Path, four: Path) -> None:
    answer = run("reshard", saved, four, "--json").answer
    assert answer["devices"] == [8, 4]
    assert answer["total_bytes"] == sum(row["total_bytes"] for row in answer["arrays"])
    assert {row["name"] for row in answer["arrays"]} == {"params/w1", "params/w2"}
    assert answer["lost_bytes"] == 0
    shown = run("reshard", saved, four).out
    assert "from 8 to 4 devices" in shown
    same = run("reshard", saved, saved, "--json").answer
    assert same["total_bytes"] == 0


def test_what_is_lost_is_a_no(run: Run, tmp_path: Path) -> None:
    split, other = tmp_path / "split.json", tmp_path / "other.json"
    for path, spec in ((split, "8,-"), (other, "-,8")):
        run("plan", "step.py:sgd", "-c", "8xh100", "-o", path, "--pin", f"params/w1={spec}",
            "--no-baselines")  # fmt: skip
    assert run("reshard", split, other).status == 0
    ran = run("reshard", split, other, "--lost", "2-3", "--json")
    assert ran.status == 1
    assert ran.answer["lost_bytes"] >= 64 * 128 * 4 // 4
    assert "restore them from a checkpoint" in run("reshard", split, other, "--lost", "2,3").out


def test_arrays_of_one_plan_only_are_a_no(run: Run, saved: Path, tmp_path: Path) -> None:
    adam = tmp_path / "adam.json"
    run("plan", "step.py:adam", "-c", "8xh100", "-o", adam, "--no-baselines")
    ran = run("reshard", saved, adam, "--json")
    assert ran.status == 1
    assert ran.answer["only_after"]


@pytest.mark.parametrize(
    "words",
    [("--lost", "all"), ("--lost", "8"), ("--lost", "3-"), ("--lost", "")],
)
def test_wrong_devices_are_one_line(run: Run, saved: Path, words: tuple[str, str]) -> None:
    ran = run("reshard", saved, saved, *words)
    assert ran.status == 2
    assert len(ran.err.splitlines()) == 1


def test_wrong_files_are_one_line(run: Run, saved: Path) -> None:
    for pair in (("absent.json", saved), (saved, "step.py"), (saved, ".")):
        ran = run("reshard", *pair, "--json")
        assert ran.status == 2
        assert ran.error["kind"] == "plan-file"


def test_a_plan_that_would_be_needs_a_difference(run: Run, saved: Path, tmp_path: Path) -> None:
    assert run("explain", saved, "-o", "x.json", "--json").error["kind"] == "usage"
    assert run("explain", saved, "--devices", "4", "-o", "no/x.json").status == 2
    assert not (tmp_path / "x.json").exists()
