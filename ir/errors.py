"""The errors of `ir`, and context added on the way out."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class IRError(ValueError):
    """A graph, a factor spec or a sharding breaks an invariant of `ir`.

    message: the error, without place and remedy.
    where: argument, function or setting; empty where the message says it.
    remedy: how to solve the problem.
    """

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        self.message, self.where, self.remedy = message, where, remedy
        place = f"{where}: " if where else ""
        advice = f"; {remedy}" if remedy else ""
        super().__init__(f"{place}{message}{advice}")


class TraceError(IRError):
    """A user's function could not be turned into a graph."""


@contextmanager
def doing(what: str) -> Generator[None]:
    """Adds the current activity to any error that passes, without rewording it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {what}")
        raise
