"""A runner for the command line."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli.main import app
from tests.planner.cli.runner import TARGETS, Ran, Run


@contextmanager
def running(folder: Path, cache: Path) -> Generator[Run]:
    """Runs the command line in a folder, in which it writes `step.py`, with a plan store."""
    (folder / "step.py").write_text(TARGETS, encoding="utf-8")

    def ran(*args: str | Path) -> Ran:
        done = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="meshwright")
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert "Traceback" not in done.output
        return Ran(done.exit_code, done.stdout, done.stderr)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        yield ran
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Run]:
    """Runs the command line in a folder that holds `step.py`, with a plan store of its own."""
    with running(tmp_path, tmp_path_factory.mktemp("cache")) as ran:
        yield ran


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A plan file, planned once."""
    folder = tmp_path_factory.mktemp("planned")
    with running(folder, folder / "cache") as ran:
        words = ("plan", "step.py:sgd", "-c", "8xh100", "-o", "plan.json", "--no-baselines")
        assert ran(*words).status == 0
    return (folder / "plan.json").read_bytes()


@pytest.fixture
def saved(run: Run, tmp_path: Path, planned: bytes) -> Path:
    """A plan file of its own, in the folder of `run`."""
    del run
    path = tmp_path / "plan.json"
    path.write_bytes(planned)
    return path
