"""Processes that are killed while they write: the old content or the new, whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from planner.common.write_files import STALE_S, write_files
from profiles import load_profile, save_profile

STEPS = 4
HOME = Path(__file__).resolve().parents[2]
KINDS = ("plan", "profile", "profile database", "plan store", "plan store, read", "journal")


@pytest.fixture(name="report", scope="module")
def _report() -> dict[str, list[dict[str, Any]]]:
    """One process, whose forks are killed one after the other."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.hostile.writes", str(STEPS)], cwd=HOME, check=False,
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(HOME)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost(report: dict[str, list[dict[str, Any]]], kind: str) -> None:
    rows = report[kind]
    signals = [row["signal"] for row in rows]
    assert signals.count(signal.SIGXFSZ) >= STEPS  # killed inside a write
    assert signals.count(0) >= 1
    for row in rows:
        assert row["again"] == "new"  # the next writer is not disturbed
        if kind == "plan store, read":
            assert row["found"] == "new"  # what was logged before is not lost by moving it
        elif row["signal"] == signal.SIGXFSZ:
            assert row["found"] == "old"
        elif row["signal"] == 0:
            assert row["found"] == "new"
            assert not row["left"]


@pytest.mark.parametrize("kind", ["plan", "profile"])
def test_a_file_is_renamed_or_not(report: dict[str, list[dict[str, Any]]], kind: str) -> None:
    before, after = [row for row in report[kind] if row["signal"] == signal.SIGKILL]
    assert (before["found"], after["found"]) == ("old", "new")
    assert len(before["left"]) == 1
    assert not after["left"]


def test_what_killed_writers_left_goes_in_time(tmp_path: Path) -> None:
    """Of this file only, and not what another writer may write now."""
    drafts = [f".{name}.{digit * 16}" for name in ("plan.json", "[a]") for digit in "0f"]
    kept = (".plan.json.x", ".other.json." + "0" * 16, ".plan.json." + "0" * 15)
    for name in (*drafts, *kept):
        (tmp_path / name).touch()
    long_ago = time.time() - 2 * STALE_S
    for name in (*drafts[::2], *kept):
        os.utime(tmp_path / name, (long_ago, long_ago))
    write_files([(tmp_path / "plan.json", b"1"), (tmp_path / "[a]", b"2")])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"plan.json", "[a]", *drafts[1::2], *kept}
    os.utime(tmp_path / drafts[1], (long_ago, long_ago))
    save_profile(load_profile("h100"), tmp_path / "plan.json")
    assert {path.name for path in tmp_path.iterdir()} == left - {drafts[1]}
