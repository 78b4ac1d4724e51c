"""The text of exported Python modules, formatted as `ruff format` would."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .record import loader

_DATA = re.compile(r"# <plan>\n.*?# </plan>\n", re.DOTALL)
_WIDTH = 88  # of ruff format, unless told otherwise


def module_text(docstring: str, name: str, data: str) -> bytes:
    """A Python module: a loader of ours with a plan's data in place of its examples.

    Args:
        docstring: of the module, with its quotes.
        name: file of the loader.
        data: assignments, as source.
    """
    code = _DATA.sub(lambda _: data, loader(name).partition("\n")[2])
    return f"{docstring}\n\n{code}".encode()


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
