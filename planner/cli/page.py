"""A plan's page with some colour."""

from __future__ import annotations

from rich.text import Text


def page(text: str) -> Text:
    """Text with highlighted title, labels and warnings."""
    shown = Text(text)
    shown.highlight_regex(r"\A.*", "bold")
    shown.highlight_regex(r"(?m)^  (mesh|step|memory|lower bound|micro-batches|factors)\b", "cyan")
    shown.highlight_regex(r"(?m)^  warning:.*$", "yellow")
    shown.highlight_regex(r"does not fit.*$", "red")
    return shown
