"""Targets: every way not to be one is one clear line, and every way to be one works."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import jax
import pytest

from planner.cli.target import load_target
from planner.common.errors import PlanError
from tests.planner.cli.runner import TARGETS, Run

BAD = {
    "step.py": "names no function",
    "step.py:": "names no function",
    ":sgd": "names no function",
    "step.py:two words": "names no function",
    "absent.py:sgd": "there is no file absent.py",
    "stp.py:sgd": "did you mean step.py?",
    "plans/absent.py:sgd": "there is no file",
    "./step:sgd": "did you mean step.py?",
    "step.txt:sgd": "there is no module 'step.txt'",
    "./notes.txt:sgd": "is not a Python file",
    "step.py:sdg": "did you mean 'sgd'?",
    "step.py:zzzzzz": "it has",
    "step.py:holder.trget": "did you mean 'target'?",
    "step.py:number": "is a int",
    "step.py:needs": "needs the arguments a, b",
    "step.py:raises": "raised ValueError: first line second line (step.py:",
    "step.py:leaves": "raised SystemExit: gone",
    "step.py:a_dict": "returned a dict, expected (fn, args)",
    "step.py:four": "returned a tuple of 4",
    "step.py:no_function": "returned a int first",
    "step.py:no_tuple": "(fn, (x,))",
    "step.py:no_dict": "returned a int third",
    "step.py:misspelt": "did you mean 'optimizer'?",
    "step.py:with_cluster": "sets 'cluster'",
    "absent.module:sgd": "there is no module 'absent'",
    "package.absent:sgd": "there is no module 'package.absent'",
    "not-a-name:sgd": "neither a .py file nor the name of a module",
    "broken.py:sgd": "SyntaxError",
    "stops.py:sgd": "importing it raised SystemExit: 3 (stops.py:3)",
    "lost.py:sgd": "No module named 'surely_absent'",
    "lost:sgd": "No module named 'surely_absent'",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("no program", encoding="utf-8")
    (tmp_path / "broken.py").write_text("def sgd(:\n", encoding="utf-8")
    (tmp_path / "stops.py").write_text("import sys\n\nsys.exit(3)\n", encoding="utf-8")
    (tmp_path / "lost.py").write_text("import surely_absent\n", encoding="utf-8")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "package/steps.py").write_text(TARGETS, encoding="utf-8")
    (tmp_path / "package/relative.py").write_text("from .steps import sgd\n", encoding="utf-8")
    (tmp_path / "beside.py").write_text("from helper_beside import sgd\n", encoding="utf-8")
    (tmp_path / "helper_beside.py").write_text(TARGETS, encoding="utf-8")
    (tmp_path / "my-step.py").write_text(TARGETS, encoding="utf-8")
    (tmp_path / "json.py").write_text(TARGETS, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("target", "word"), BAD.items(), ids=range(len(BAD)))
def test_bad_target_is_one_line(run: Run, folder: Path, target: str, word: str) -> None:
    ran = run("plan", target, "-c", "8xh100")
    assert (ran.status, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert word in ran.err
    assert target in ran.err
    error = run("plan", target, "-c", "8xh100", "--json").error
    assert (error["kind"], error["where"]) == ("bad-target", target)


@pytest.mark.parametrize(
    "target",
    [
        "package/relative.py:sgd",
        "package.relative:sgd",
        "beside.py:sgd",
        "my-step.py:sgd",
        "json.py:sgd",
    ],
)
def test_files_and_modules_find_what_they_import(run: Run, folder: Path, target: str) -> None:
    ran = run("plan", target, "-c", "2xh100", "--no-baselines", "--json")
    assert ran.answer["name"] == "train_step"


def test_an_absolute_path_is_a_target(run: Run, folder: Path) -> None:
    target = f"{folder / 'step.py'}:sgd"
    assert run("plan", target, "-c", "2xh100", "--no-baselines").status == 0


def test_what_a_target_computes_is_compiled_quickly(tmp_path: Path) -> None:
    flag = "jax_disable_most_optimizations"
    text = f"""
import jax

def within():
    return abs, (jax.config.values["{flag}"],)

def raises():
    raise ValueError
"""
    (tmp_path / "looks_up_flag.py").write_text(text, encoding="utf-8")
    target = f"{tmp_path / 'looks_up_flag.py'}:"
    config = cast("Any", jax).config
    assert not config.values[flag]
    assert load_target(f"{target}within").args == (True,)
    assert not config.values[flag]
    with pytest.raises(PlanError):
        load_target(f"{target}raises")
    assert not config.values[flag]
