"""Warnings about the plan store, as one line on standard error."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Generator
from typing import TextIO

from ..common.store.warning import StoreWarning


@contextlib.contextmanager
def notes() -> Generator[None]:
    """Prints the first warning about the plan store; other warnings are shown as usual."""
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", StoreWarning)
        others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not issubclass(category, StoreWarning):
                others(message, category, filename, lineno, file, line)
            elif str(message) not in said:
                said.add(str(message))
                sys.stderr.write(f"note: {message}\n")

        warnings.showwarning = show
        yield
