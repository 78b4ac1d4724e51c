"""What a command gives back, and how it is printed: text for people or one JSON object."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from .failure import Failure

# The shell's status of a program whose reader went away: 128 + SIGPIPE.
BROKEN_PIPE = 141


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command.

    data: what `--json` prints.
    text: what people read; called with the width of the terminal, None where there is none.
    status: exit status, 1 for a negative answer.
    """

    data: dict[str, Any]
    text: Callable[[int | None], Text]
    status: int = 0


def own_stdout() -> None:
    """Keeps standard output for the answer, for the rest of the process.

    Descriptor 1 becomes standard error, so that what a library, a subprocess or the buffers of C
    write there is not mixed with the answer, and the answer goes through a copy of the old one.
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
    """Keeps Colorama, which Numba starts where it is installed, from writing when all is said.

    At the end of the process it would reset the colours of terminals that have none.
    """
    colorama = sys.modules.get("colorama.initialise")
    if colorama is not None:
        atexit.unregister(colorama.reset_all)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with status 1, which means no here."""
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
    """Gives up on a standard output that cannot be written, buffered text included."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)


def _finite(value: Any) -> Any:
    """JSON has no infinity; null stands for a number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in cast("list[Any]", value)]
    return value


@contextlib.contextmanager
def progress(*, as_json: bool) -> Generator[Callable[[str], None]]:
    """A line on standard error that says what is being done, where someone can see it."""
    console = Console(file=sys.stderr)
    if as_json or not console.is_terminal or console.is_dumb_terminal:
        yield lambda _: None
        return
    with console.status("start") as status:
        yield lambda text: status.update(Text(text))
