"""Elements of HTML and SVG; every text and attribute is escaped, so that names cannot be markup."""

from __future__ import annotations

from html import escape
from typing import final

from ...common.units_text import printable


@final
class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None


def text(value: str) -> Markup:
    """Plain text as markup; control characters are spelt out."""
    return Markup(escape(printable(value)))


def join(children: tuple[Child, ...] | list[Child] | list[Markup]) -> Markup:
    """Children one after another; plain strings are escaped, None is left out."""
    return Markup(
        "".join(c if isinstance(c, Markup) else text(c) for c in children if c is not None)
    )


def el(tag: str, *children: Child, **attributes: str | float | None) -> Markup:
    """An element.

    Args:
        tag: its name.
        children: markup, or plain text to escape.
        attributes: `class_` is class, `view_box` is viewBox, other `_` are hyphens; None is
            left out.
    """
    shown = "".join(
        f' {_name(k)}="{escape(printable(_value(v)), quote=True)}"'
        for k, v in attributes.items()
        if v is not None
    )
    return Markup(f"<{tag}{shown}>{join(children)}</{tag}>")


_NAMES = {"view_box": "viewBox", "preserve_aspect_ratio": "preserveAspectRatio"}


def _name(key: str) -> str:
    return _NAMES.get(key, key.rstrip("_").replace("_", "-"))


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def table(
    caption: str, head: tuple[str, ...], rows: list[tuple[Child, ...]], *, numeric: str = ""
) -> Markup:
    """An accessible table in a frame that scrolls sideways.

    Args:
        caption: text of the caption.
        head: names of the columns.
        rows: cells, the first names its row.
        numeric: one letter for each column, `n` for those that align right.
    """
    sides = [("num" if numeric[i : i + 1] == "n" else None) for i in range(len(head))]
    heads = [el("th", h, scope="col", class_=side) for h, side in zip(head, sides, strict=True)]
    lines = [
        el("tr", el("th", row[0], scope="row"),
           *(el("td", c, class_=side) for c, side in zip(row[1:], sides[1:], strict=True)))
        for row in rows
    ]  # fmt: skip
    return el(
        "div",
        el("table", el("caption", caption), el("thead", el("tr", *heads)), el("tbody", *lines)),
        class_="scroll", tabindex=0, role="region", aria_label=caption,
    )  # fmt: skip


def bar(share: float, kind: str = "compute") -> Markup:
    """A bar for a share from 0 to 1; the number stands beside it in the table."""
    width = f"width:{100 * min(max(share, 0.0), 1.0):.2f}%"
    fill = el("span", class_=f"fill k-{kind}", style=width)
    return el("span", fill, class_="bar", aria_hidden="true")
