# pyright: basic
"""What the command line says of a changed file: an answer, or one error that is no defect."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from planner.cli.main import app

from .kind import Files, Kind, expect

STATUS = (0, 1, 2)


def told(kind: Kind, folder: Path, seed: Files) -> None:
    """Runs the command of a kind on the files in a folder.

    Raises:
        WrongError: if the answer is not one JSON object, or says that there is a defect.
    """
    first = next(iter(seed))
    with _cache(folder):
        words = [word.format(file=folder / first) for word in kind.command]
        ran = CliRunner().invoke(app, [*words, "--json"], prog_name="meshwright")
    expect(ran.exception is None or isinstance(ran.exception, SystemExit), repr(ran.exception))
    expect(ran.exit_code in STATUS, f"exit status {ran.exit_code}")
    lines = ran.stdout.splitlines()
    expect(len(lines) == 1, f"{len(lines)} lines of output: {ran.stdout[:300]}")
    answer = json.loads(lines[0])
    error = answer.get("error", {})
    expect(error.get("kind") != "internal", str(error))
    expect(bool(error) <= (ran.exit_code > 0), f"{error} with exit status {ran.exit_code}")


@contextmanager
def _cache(folder: Path) -> Generator[None]:
    """The user's cache folder has these files."""
    place = folder / "cache" / "meshwright"
    place.mkdir(parents=True, exist_ok=True)
    for path in [path for path in folder.iterdir() if path.is_file()]:
        shutil.copy(path, place)
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before
