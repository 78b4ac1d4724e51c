"""A runner for the command line."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli.main import app
from tests.planner.cli.runner import TARGETS, Ran, Run


@pytest.fixture
def run(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Generator[Run]:
    """Runs the command line in a folder that holds `step.py`, with a plan store of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    (tmp_path / "step.py").write_text(TARGETS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def ran(*args: str | Path) -> Ran:
        done = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="meshwright")
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert "Traceback" not in done.output
        return Ran(done.exit_code, done.stdout, done.stderr)

    yield ran
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def saved(run: Run, tmp_path: Path) -> Path:
    """A plan file."""
    path = tmp_path / "plan.json"
    assert run("plan", "step.py:sgd", "-c", "8xh100", "-o", path, "--no-baselines").status == 0
    return path
