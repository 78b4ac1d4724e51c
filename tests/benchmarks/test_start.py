"""What the benchmark of start-up measures."""

from __future__ import annotations

from benchmarks.start import HERE, least, measured


def test_work_and_memory_of_a_process_are_seen() -> None:
    busy = "x = b'x' * 600_000_000\nfor _ in range(5_000_000): pass"
    idle, worked = (measured(HERE, ["-c", code]) for code in ("pass", busy))
    assert worked["process_s"] > idle["process_s"] > 0.0
    assert worked["peak_mb"] > 600.0 > idle["peak_mb"]


def test_children_count() -> None:
    busy = "for _ in range(5_000_000): pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    alone, both = (measured(HERE, ["-c", code]) for code in ("pass", parent))
    assert both["process_s"] > alone["process_s"] + 0.05


def test_the_least_of_each_checkout() -> None:
    found = least([HERE, HERE], ["-c", "pass"], 2)
    assert len(found) == 2
    assert all(each["process_s"] > 0.0 for each in found)
