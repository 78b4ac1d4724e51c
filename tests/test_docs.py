"""Documentation runs: every python block of every page, on eight CPU devices; links lead on."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)")

PAGES = sorted(
    page.relative_to(ROOT).as_posix() for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
)


def program(markdown: str) -> str:
    """The python blocks of a page as one program, each line on the line it has in the page."""
    lines = [""] * len(markdown.splitlines())
    for block in FENCE.finditer(markdown):
        first = markdown.count("\n", 0, block.start(1))
        code = block.group(1).splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


RUNNABLE = [page for page in PAGES if FENCE.search((ROOT / page).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", RUNNABLE)
@pytest.mark.filterwarnings("default")
def test_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "page.py"  # tracebacks have the page's line numbers
    script.write_text(program((ROOT / page).read_text(encoding="utf-8")), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [match.group(1) for match in LINK.finditer(text)]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_program_keeps_the_line_numbers_of_the_page() -> None:
    page = "Some text.\n\n```python\nx = 1\n```\n\nMore.\n\n```python\nassert x == 1\n```\n"
    assert program(page).splitlines()[3] == "x = 1"
    assert program(page).splitlines()[9] == "assert x == 1"
