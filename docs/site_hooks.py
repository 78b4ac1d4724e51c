"""Hooks of the docs site: pages that lie above docs/ are part of it, under project/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md")
FILES = ("LICENSE", "NOTICE")


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the pages of the repository's top folder."""
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](../")
        files.append(File.generated(config, f"project/{name}", content=text))
    for name in FILES:
        files.append(File.generated(config, f"project/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Leads links to the top folder to where its pages are here."""
    del config, files
    depth = page.file.src_uri.count("/")
    if page.file.src_uri.startswith("project/"):
        return markdown
    above = "../" * (depth + 1)
    return re.sub(rf"\]\({re.escape(above)}([A-Z]+\.md)", rf"]({'../' * depth}project/\1", markdown)
