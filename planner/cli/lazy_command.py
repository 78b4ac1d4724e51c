"""A command whose module is loaded when it is used, so that help and wrong usage are quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from .command import Command


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the table of commands.

    function: `module:function`, with the module in this package.
    summary: first sentence of the function's docstring.
    examples: arguments of calls, without the program's name.
    """

    function: str
    summary: str
    examples: tuple[str, ...]


class LazyCommand(TyperCommand):
    """A name and a summary; the command itself is made when it is called or asked for help."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.summary)
        self.entry = entry

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> Any:
        """The command of the function."""
        module, name = self.entry.function.split(":")
        function = getattr(import_module(f"{__package__}.{module}"), name)
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(self.name, cls=Command, epilog=examples(*self.entry.examples))(function)
        return typer.main.get_command(app)


def lazy(entries: Mapping[str, Entry]) -> list[Any]:
    """Commands of a table."""
    return [LazyCommand(name, entry) for name, entry in entries.items()]


def examples(*lines: str) -> str:
    """Examples for the end of a help page; the first character keeps Click from joining lines."""
    return "\b\nExamples:\n" + "\n".join(f"  meshwright {line}" for line in lines)
