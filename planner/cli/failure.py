"""Errors as one line or one JSON object, with the exit status that goes with them."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from ir import IRError, TraceError
from profiles import ProfileError

from ..common.errors import PlanError

NEGATIVE = ("does-not-fit", "differs")
WRONG_USE = 2
INTERRUPTED = 130
LONGEST = 600

# Errors of the library name its settings; on the command line they are these options.
FLAGS = {
    "Options.memory_bytes": "--memory",
    "Options.mesh": "--mesh",
    "Options.microbatches": "--microbatches",
    "Options.shardings": "--shardings",
    "Options.time_limit_s": "--time-limit",
    "lost devices": "--lost",
    "pins": "--pin",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error or a negative answer."""

    kind: str
    message: str
    where: str = ""
    remedy: str = ""
    status: int = WRONG_USE

    @property
    def data(self) -> dict[str, Any]:
        """The contract of `--json` on failure."""
        error = {"kind": self.kind, "message": self.message, "where": self.where}
        return {"error": error | {"remedy": self.remedy}}

    def text(self) -> Text:
        """One line."""
        place = f"{self.where}: " if self.where else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return Text.assemble(("error", "bold red"), f": {place}{self.message}", (remedy, "dim"))


def one_line(text: str) -> str:
    """Text on one line, cut to `LONGEST` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else f"{flat[:LONGEST]}..."


def described(error: BaseException) -> str:
    """Type and message of an exception, and the line that raised it."""
    text = str(error)
    name = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError):
        return one_line(name)  # its message names the line already
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return one_line(name) + place


def failure_of(error: BaseException) -> Failure:
    """The failure that reports an exception."""
    if isinstance(error, PlanError):
        status = 1 if error.kind in NEGATIVE else WRONG_USE
        where = FLAGS.get(error.where, error.where)
        said = " ".join([error.message, *getattr(error, "__notes__", ())])
        return Failure(error.kind, one_line(said), where, error.remedy, status)
    if isinstance(error, ProfileError):
        return Failure("profile", profile_message(error), error.where, error.remedy)
    if isinstance(error, TraceError):
        return Failure("trace", one_line(str(error)))
    if isinstance(error, IRError):
        notes = " ".join(getattr(error, "__notes__", ()))
        return Failure("program", one_line(f"{error} {notes}"))
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", "interrupted", status=INTERRUPTED)
    if isinstance(error, OSError):
        return Failure("system", described(error))
    return Failure(
        "internal", described(error), "meshwright",
        "this is a defect: run `meshwright --traceback ...` and report what it prints",
    )  # fmt: skip


def profile_message(error: ProfileError) -> str:
    """The message without the place and the remedy that its text carries."""
    return one_line(error.message)
