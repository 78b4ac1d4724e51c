"""The errors of `ir`, and context added on the way out."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class IRError(ValueError):
    """A graph, a factor spec or a sharding breaks an invariant of `ir`."""


class TraceError(IRError):
    """A user's function could not be turned into a graph."""


@contextmanager
def doing(what: str) -> Generator[None]:
    """Adds what was being done to any error that passes, without rewording it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {what}")
        raise
