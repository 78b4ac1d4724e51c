# pyright: basic
"""Programs that once went wrong, cut down: `kept/` holds one file for each."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.fuzz.case import Case, run

KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))
DRAWS = 1  # of other decisions beside those that went wrong


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.stem)
def test_it_is_right_now(file: Path) -> None:
    case = msgspec.json.decode(file.read_bytes(), type=Case)
    others = [msgspec.structs.replace(case, told=(), draw=draw) for draw in range(DRAWS)]
    for each in (case, *others):
        outcome = run(each)
        assert outcome.verdict in ("right", "rounding"), outcome.reason
