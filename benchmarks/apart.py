"""Rows of a table that have a process each, so that none is warmed up by another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def row_apart(module: str, *arguments: str, cwd: Path | None = None) -> dict[str, Any] | str:
    """The row that a benchmark prints in its last line, or in a line why it printed none.

    Args:
        module: name of the benchmark, run as `python -m benchmarks.MODULE ARGUMENTS`.
        arguments: of the row.
        cwd: folder to run it in; the current one if None.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        ended = f"no message, exit status {done.returncode}"
        return (done.stderr.strip().splitlines() or [ended])[-1]
    return json.loads(done.stdout.splitlines()[-1])
