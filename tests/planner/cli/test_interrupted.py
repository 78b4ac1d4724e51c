"""`report` and `export` as processes: interrupted, in a small terminal, with no terminal at all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.planner.cli.runner import TARGETS, Run
from tests.planner.cli.test_process import NOISY, PROGRAM, TERMINAL, environment, started


@pytest.fixture
def folder(run: Run, saved: Path) -> Path:
    """A folder with targets and a plan."""
    del run
    (saved.parent / "step.py").write_text(TARGETS, encoding="utf-8")
    (saved.parent / "noisy.py").write_text(NOISY, encoding="utf-8")
    return saved.parent


def test_an_interrupted_export_leaves_what_was_there(folder: Path) -> None:
    (folder / "x.mlir").write_text("old", encoding="utf-8")
    words = ("export", "plan.json", "--to", "stablehlo", "-o", "x.mlir", "noisy.py:waits", "--json")
    process = started(folder, *words)
    for _ in range(1200):
        if (folder / "waiting").exists():
            break
        time.sleep(0.05)
    before = {p.name for p in folder.iterdir()}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["error"]["kind"] == "interrupted"
    assert "Traceback" not in err
    assert (folder / "x.mlir").read_text(encoding="utf-8") == "old"
    assert {p.name for p in folder.iterdir()} - {"__pycache__"} == before - {"__pycache__"}


@pytest.mark.exhaustive
def test_a_terminal_of_40_columns(folder: Path) -> None:
    words = ("export", "plan.json", "--to", "deepspeed", "-o", "ds_config.json")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TERMINAL), *PROGRAM, *words],
        cwd=folder, env=environment(TERM="xterm"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "written to ds_config.json" in done.stdout
    assert json.loads((folder / "ds_config.json").read_text(encoding="utf-8"))


@pytest.mark.exhaustive
def test_no_terminal_at_all(folder: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "report", "plan.json", "-o", "plan.html"],
        cwd=folder, env=environment(TERM=""), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False, start_new_session=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "written to plan.html\n")
    assert "\x1b" not in done.stderr
