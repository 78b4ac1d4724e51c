"""The result of a command, printed as text or as one JSON object."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TextIO, cast

from rich.console import Console
from rich.text import Text

from .failure import Failure

# The shell's status of a program whose reader went away: 128 + SIGPIPE.
BROKEN_PIPE = 141


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command.

    data: the object that `--json` prints.
    text: function of the terminal's width (None without a terminal) that gives the text.
    status: exit status, 1 for a negative answer.
    """

    data: dict[str, Any]
    text: Callable[[int | None], Text]
    status: int = 0


def own_stdout() -> None:
    """Reserves standard output for the answer, for the rest of the process.

    Descriptor 1 becomes standard error, so that output of libraries, subprocesses and C buffers is
    not mixed with the answer, which is written to a copy of the old descriptor.
    """
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        return
    sys.stdout.flush()
    kept = os.dup(1)
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    # Names of tensors may hold what the terminal's encoding lacks.
    sys.stdout = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors="backslashreplace")


def leave_terminal() -> None:
    """Unregisters the exit handler of Colorama, which Numba starts where it is installed.

    It would write a colour reset at the end of the process, also where there is no terminal.
    """
    colorama = sys.modules.get("colorama.initialise")
    if colorama is not None:
        atexit.unregister(colorama.reset_all)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raises instead of exiting with status 1, which means a negative answer here."""
        raise BrokenPipeError


def show(answer: Answer | Failure, *, as_json: bool) -> int:
    """Prints an answer or a failure; returns the exit status."""
    try:
        if as_json:
            sys.stdout.write(json.dumps(_finite(answer.data), allow_nan=False) + "\n")
        elif isinstance(answer, Failure):
            _print(_Console(file=sys.stderr), answer.text())
        else:
            console = _Console(file=sys.stdout)
            _print(console, answer.text(console.width if console.is_terminal else None))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        return BROKEN_PIPE
    return answer.status


def discard_stdout() -> None:
    """Discards standard output, with its buffered text, after it could not be written."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _line_a_second(file: TextIO) -> Callable[[str], None]:
    """Writes a line if it differs from the last one, which is a second old."""
    last, when = "", 0.0

    def say(text: str) -> None:
        nonlocal last, when
        now = time.monotonic()
        if text != last and now - when >= 1.0:
            last, when = text, now
            print(text, file=file, flush=True)

    return say


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)


def _finite(value: Any) -> Any:
    """The value with null for each number that is not finite, as JSON has no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in cast("list[Any]", value)]
    return value


@contextlib.contextmanager
def progress(*, as_json: bool, wanted: bool = False) -> Generator[Callable[[str], None]]:
    """A progress line on standard error, if that is a terminal.

    Args:
        as_json: whether the answer is for a program, which wants no progress.
        wanted: whether the user asked for progress: without a terminal a line is written when there
            is something new, at most one a second.
    """
    console = Console(file=sys.stderr)
    live = console.is_terminal and not console.is_dumb_terminal
    if wanted and not live:
        yield _line_a_second(sys.stderr)
        return
    if not live or (as_json and not wanted):
        yield lambda _: None
        return
    with console.status("start") as status:
        yield lambda text: status.update(Text(text))
