"""The repeated layer as an SVG: one box per operation, arcs for what skips, collectives between."""

from __future__ import annotations

from dataclasses import dataclass

from ...common.units_text import bytes_text, seconds_text
from ..timeline import Event
from .layer import Block, Row
from .markup import Markup, el

LEFT, WIDTH, LINE = 66.0, 400.0, 16.0
BOX = WIDTH - LEFT - 2
MOST_CHARACTERS = 50


@dataclass(frozen=True, slots=True)
class _Placed:
    top: float
    bottom: float


def draw_block(block: Block) -> Markup:
    """The picture, from top to bottom in program order."""
    y, places, shapes = 4.0, list[_Placed](), list[Markup]()
    for row in block.rows:
        if row.light:
            note = f"{row.light} light operation{'s' if row.light > 1 else ''}"
            shapes.append(_say(note, LEFT + 12, y + 12, "soft"))
            y += LINE
        for event in row.before:
            shapes.append(_badge(event, y))
            y += 24.0
        lines = _lines(row)
        height = LINE * len(lines) + 10
        shapes.append(el("rect", x=LEFT, y=y, width=BOX, height=height, rx=5, class_="box"))
        for n, (line, look) in enumerate(lines):
            shapes.append(_say(line, LEFT + 10, y + LINE * (n + 1), look))
        places.append(_Placed(y, y + height))
        y += height + 6
        for event in row.after:
            shapes.append(_badge(event, y))
            y += 24.0
        y += 8
    shapes += _arcs(block.rows, places)
    said = f"{len(block.rows)} operations of one repeat, in program order"
    view = f"0 0 {WIDTH:g} {y + 4:.0f}"
    return el("svg", *shapes, view_box=view, role="img", aria_label=said,
              style="width:100%;max-width:620px")  # fmt: skip


def _lines(row: Row) -> list[tuple[str, str]]:
    title = f"{row.name}  {row.source}".strip()
    lines = [(title, "strong"), (row.result, ""), (row.roles, "soft")]
    lines += [(f"reads {name} {state}", "soft") for name, state in row.arguments]
    return [(line, look) for line, look in lines if line]


def _say(line: str, x: float, y: float, look: str) -> Markup:
    short = line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
    whole = el("title", line) if short != line else None
    return el("text", short, whole, x=x, y=y, class_=look or None)


def _badge(event: Event, y: float) -> Markup:
    """A collective on the way into or out of a box."""
    times = f" x{event.count:g}" if event.count != 1 else ""
    line = (
        f"{event.what} over {'*'.join(event.axes)}{times}: {bytes_text(event.sent_bytes)}, "
        f"{seconds_text(event.seconds)}"
    )
    mark = el("rect", x=LEFT + 12, y=y + 4, width=10, height=10, rx=5, class_=f"k-{event.what}")
    return el("g", mark, _say(line, LEFT + 28, y + 13.5, ""), el("title", event.cause))


def _arcs(rows: tuple[Row, ...], places: list[_Placed]) -> list[Markup]:
    """Edges at the left; the further one skips, the further out it runs."""
    arcs: list[Markup] = []
    for n, row in enumerate(rows):
        for source in row.reads:
            start, end = places[source].bottom - 8, places[n].top + 8
            out = LEFT - min(10.0 + 9.0 * (n - source), LEFT - 4)
            path = f"M{LEFT:g} {start:.1f} H{out + 6:.1f} Q{out:.1f} {start:.1f} {out:.1f} "
            path += f"{start + 6:.1f} V{end - 6:.1f} Q{out:.1f} {end:.1f} {out + 6:.1f} {end:.1f} "
            path += f"H{LEFT - 5:g} l-4 -4 m4 4 l-4 4"
            arcs.append(el("path", d=path, class_="arc"))
    return arcs
