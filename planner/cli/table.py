"""Rows in columns where they fit the terminal, one row below the other where they do not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

Row = Sequence[str]


def table(head: Row, rows: Sequence[Row], width: int | None) -> Text:
    """Lays rows out; columns whose cells all start with a digit or are empty align right.

    Args:
        head: names of the columns.
        rows: cells; the first one names its row.
        width: of the terminal; None for as wide as it takes.
    """
    sizes = [max(cell_len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    if width is not None and sum(sizes) + 2 * (len(sizes) - 1) > width:
        return _stacked(head, rows)
    right = [all(row[i][:1].isdigit() or not row[i] for row in rows) for i in range(len(head))]
    lines = [Text(_line(head, sizes, right), style="bold")]
    lines += [Text(_line(row, sizes, right)) for row in rows]
    return Text("\n").join(lines)


def _line(row: Row, sizes: Sequence[int], right: Sequence[bool]) -> str:
    cells: list[str] = []
    for cell, size, flush in zip(row, sizes, right, strict=True):
        space = " " * (size - cell_len(cell))
        cells.append(space + cell if flush else cell + space)
    return "  ".join(cells).rstrip()


def _stacked(head: Row, rows: Sequence[Row]) -> Text:
    lines = [Text(f"{head[0]}:", style="dim")] if head[0] else []
    for row in rows:
        lines.append(Text(row[0], style="bold"))
        lines += [
            Text(f"  {name}: {cell}" if name else f"  {cell}")
            for name, cell in zip(head[1:], row[1:], strict=True)
            if cell
        ]
    return Text("\n").join(lines)
