"""Tables of exported Python modules as text, in the form that `ruff format` leaves as it is."""

from __future__ import annotations

from collections.abc import Sequence

_WIDTH = 88  # of ruff format, unless told otherwise


def axes_text(axes: Sequence[str]) -> str:
    """An entry of a PartitionSpec."""
    names = [literal(axis) for axis in axes]
    return tuple_text(names) if len(names) > 1 else names[0] if names else "None"


def literal(value: str) -> str:
    """A string literal as ruff writes it."""
    shown = ascii(value)
    return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in value else shown


def tuple_text(items: Sequence[str]) -> str:
    """A tuple of items."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def row_text(items: Sequence[str]) -> str:
    """A tuple in a list, on one line or on one for each item."""
    line = f"    ({', '.join(items)}),"
    if len(line) <= _WIDTH:
        return line
    return "\n".join(["    (", *(f"        {item}," for item in items), "    ),"])


def list_text(name: str, rows: Sequence[str]) -> str:
    """A list of rows under a name."""
    return "\n".join([f"{name} = [", *rows, "]"]) if rows else f"{name} = []"
