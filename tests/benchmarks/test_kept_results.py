"""Results that `python -m benchmarks` keeps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as benches


@pytest.mark.parametrize(
    ("words", "kept"), [([], 1), (["--quick"], 1), (["--only", "a"], 0), (["--unmeasured"], 0)]
)
def test_rows_of_a_part_take_the_place_of_none(
    words: list[str], kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def rows(quick: bool) -> list[bool]:
        return [quick]

    def found(name: str) -> SimpleNamespace:
        return SimpleNamespace(main=rows)

    monkeypatch.setattr(benches, "import_module", found)
    monkeypatch.setattr(benches, "__file__", str(tmp_path / "__main__.py"))
    assert benches.main(["costs", *words]) == 0
    assert len(list(tmp_path.glob("results/*/costs.json"))) == kept
