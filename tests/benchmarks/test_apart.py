"""Rows of benchmarks in processes of their own."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from benchmarks.apart import row_apart


@pytest.mark.parametrize(
    ("status", "out", "err", "row"),
    [
        (0, 'warm\n{"step_s": 1.5}\n', "a warning", {"step_s": 1.5}),
        (1, "", "Traceback\nValueError: too small\n", "ValueError: too small"),
        (-9, "", "", "no message, exit status -9"),
    ],
)
def test_a_row_is_what_was_printed_or_why_there_is_none(
    monkeypatch: pytest.MonkeyPatch, status: int, out: str, err: str, row: object
) -> None:
    def run(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(returncode=status, stdout=out, stderr=err)

    monkeypatch.setattr(subprocess, "run", run)
    assert row_apart("scale", "row") == row
