"""Runs a program in a fresh process that cannot import the planner."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = """
import sys
class _Block:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("planner", "ir", "costmodel", "profiles", "substitutions"):
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, _Block())
"""


def run_fresh(program: str, folder: Path, *, devices: int = 8, **environment: str) -> str:
    """Standard output of a program run in a folder; its failure fails the test."""
    script = folder / "program.py"
    script.write_text(BLOCK + program, encoding="utf-8")
    flags = re.sub(r"(device_count)=\d+", rf"\1={devices}", os.environ["XLA_FLAGS"])
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
