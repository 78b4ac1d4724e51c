"""What each pass makes of a few lines: text in, text out.

A file in `cases/` has settings (`name: value`), a line `---`, what goes in, a line `---`, and what
has to come out. Lines before the settings that begin with `#` say what the case shows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes.passes import PASSES

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_it_makes_this_of_that(file: Path) -> None:
    head, given, expected = file.read_text(encoding="utf-8").split("---\n")
    lines = (line for line in head.splitlines() if not line.startswith("#"))
    settings = dict(line.split(": ", 1) for line in lines)
    found = PASSES[settings.pop("pass")](given.strip(), settings)
    assert found.strip() == expected.strip()


def test_every_pass_is_shown() -> None:
    shown = {file.stem.partition("-")[0] for file in CASES}
    assert shown == set(PASSES)
