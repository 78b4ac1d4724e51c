"""What the benchmark of start-up measures, from a process as small as its own."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.start import HERE

BUSY = "for _ in range(5_000_000): pass"


def measured(code: str) -> dict[str, float]:
    """A process by its code, as the benchmark measures it."""
    script = (
        "import json, sys; from benchmarks.start import HERE, least\n"
        "print(json.dumps(least([HERE], ['-c', sys.argv[1]], 2)[0]))"
    )
    command = [sys.executable, "-c", script, code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE)
    return json.loads(done.stdout)


def test_work_and_memory_of_a_process_are_seen() -> None:
    idle, worked = measured("pass"), measured(f"x = b'x' * 200_000_000\n{BUSY}")
    assert worked["process_s"] > idle["process_s"] > 0.0
    assert worked["peak_mb"] > idle["peak_mb"] + 190.0


def test_children_count() -> None:
    both = measured(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])")
    assert both["process_s"] > measured("pass")["process_s"] + 0.05
