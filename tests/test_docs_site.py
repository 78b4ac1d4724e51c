# pyright: basic
"""The docs site: every page is in it, every public name in the reference; it builds strictly."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import planner

ROOT = Path(__file__).resolve().parents[1]


def nav() -> list[str]:
    """Pages of the site's navigation."""

    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        parts = entry if isinstance(entry, list) else list(entry.values())
        return [page for part in parts for page in pages(part)]

    return pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


def test_every_page_is_in_the_navigation() -> None:
    held = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    listed = nav()
    assert len(set(listed)) == len(listed)
    assert {page for page in listed if not page.startswith("project/")} == held


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    named = set(re.findall(r"heading: planner\.(\w+)", text))
    surface = (ROOT / "meshwright" / "__init__.pyi").read_text(encoding="utf-8")
    public = set(re.findall(r"import \w+ as (\w+)", surface)) - {"PipelinePlan", "VERSION"}
    assert named == public
    for place in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
        module, _, name = place.rpartition(".")
        assert getattr(importlib.import_module(module), name).__doc__
    assert planner.__doc__


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs")
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "reference.html").read_text(encoding="utf-8")
    assert "memory_bytes" in page
    assert "what_if" in page
    assert not re.search(r'(?:src|href)="https?://[^"]*\.(?:js|css)', page)
