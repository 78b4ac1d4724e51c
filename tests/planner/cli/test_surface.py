"""`export`, `compare` with shardings, and `explain` with what-if, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.inspect.export import FORMATS
from tests.planner.cli.runner import Run


def test_export_names_files_and_what_is_lost(run: Run, saved: Path) -> None:
    answer = run("export", saved, "--to", "shardings", "-o", "s.json", "--json").answer
    assert answer["format"] == "shardings"
    assert answer["files"] == ["s.json", "s.py"]
    assert answer["notes"]
    assert all(Path(name).exists() for name in answer["files"])
    ran = run("export", saved, "--to", "deepspeed", "-o", "ds.json")
    assert ran.status == 0
    assert ran.out.startswith("written to ds.json")


def test_export_help_lists_the_formats(run: Run) -> None:
    said = " ".join(run("export", "--help").out.split())
    assert all(f"{name}:" in said for name in FORMATS)


def test_exported_shardings_compare_with_their_plan(run: Run, saved: Path) -> None:
    run("export", saved, "--to", "shardings", "-o", "s.json")
    answer = run("compare", saved, "s.json", "--json").answer
    assert answer["same_program"] is True
    assert answer["arguments"] == []
    assert answer["b"]["origin"] == "by hand"


WRONG = {
    "unknown format": ("export", "PLAN", "--to", "onnx", "-o", "x"),
    "no function": ("export", "PLAN", "--to", "stablehlo", "-o", "x.mlir"),
    "no folder": ("export", "PLAN", "--to", "traffic", "-o", "no/x.json"),
    "a folder": ("export", "PLAN", "--to", "traffic", "-o", "."),
    "no plan": ("export", "absent.json", "--to", "traffic", "-o", "x.json"),
    "not a plan": ("export", "step.py", "--to", "traffic", "-o", "x.json"),
    "no format": ("export", "PLAN", "-o", "x.json"),
    "no output": ("report", "PLAN"),
    "a tensor and what if": ("explain", "PLAN", "params/w1", "--devices", "4"),
    "odd devices": ("explain", "PLAN", "--devices", "12"),
    "no links": ("explain", "PLAN", "--bandwidth", "0"),
    "bad memory": ("explain", "PLAN", "--memory", "lots"),
    "bad pin": ("explain", "PLAN", "--pin", "params/w1"),
    "bad shardings": ("compare", "PLAN", "bad.json"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("as_json", [False, True])
def test_wrong_use_is_one_line_and_leaves_nothing(
    run: Run, saved: Path, name: str, as_json: bool
) -> None:
    Path("bad.json").write_text('{"format": "meshwright-shardings", "version": 2}', "utf-8")
    before = sorted(Path().rglob("*"))
    words = [str(saved) if word == "PLAN" else word for word in WRONG[name]]
    ran = run(*words, *(["--json"] if as_json else []))
    assert ran.status == 2
    if as_json:
        assert ran.error["message"]
    else:
        assert ran.out == ""
        assert len(ran.err.strip().splitlines()) == 1
        assert "Traceback" not in ran.err
    assert sorted(Path().rglob("*")) == before


def test_what_if_is_shown_beside_the_plan(run: Run, saved: Path) -> None:
    answer = run("explain", saved, "--devices", "4", "--json").answer
    assert (answer["a"]["devices"], answer["b"]["devices"]) == (8, 4)
    assert answer["same_program"] is True
    ran = run("explain", saved, "--bandwidth", "2")
    assert "what if" in ran.out


def test_what_if_nothing_fits_is_no(run: Run, saved: Path) -> None:
    assert run("explain", saved, "--memory", "1kB").status == 1


def test_unfinished_exports_leave_the_old_file(run: Run, saved: Path) -> None:
    Path("s.json").write_text("old", encoding="utf-8")
    Path("s.py").mkdir()
    assert run("export", saved, "--to", "shardings", "-o", "s.json").status == 2
    assert Path("s.json").read_text(encoding="utf-8") == "old"
    assert json.loads(saved.read_text(encoding="utf-8"))
