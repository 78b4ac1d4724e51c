"""Writes an export: the file that the user names, and files that belong to it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...common.errors import PlanError
from ...common.write_files import write_files
from ..analysed_plan import AnalysedPlan
from .edits import edits
from .record import Format, Subject
from .registry import FORMATS


@dataclass(frozen=True, slots=True)
class Written:
    """The written files, the named one first, and notes on what the format cannot express."""

    format: str
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def format_called(name: str) -> Format:
    """A format by its name.

    Raises:
        PlanError: if there is none of that name.
    """
    if name not in FORMATS:
        near = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise PlanError(
            f"there is no format '{name}'", kind="bad-option", where="export",
            remedy=f"{hint}formats are {', '.join(FORMATS)}",
        )  # fmt: skip
    return FORMATS[name]


def export_files(
    analysed: AnalysedPlan,
    name: str,
    path: Path,
    serialize: Callable[[], tuple[str, bytes]],
    progress: Callable[[str], None] | None = None,
) -> Written:
    """Exports a plan, all files or none.

    Raises:
        PlanError: if the format is unknown, cannot express the plan, or cannot be written.
    """
    format_ = format_called(name)
    made = format_.make(Subject(analysed, serialize, progress or (lambda _: None)))
    beside = [(path.with_suffix(suffix), data) for suffix, data in made.beside]
    clash = [str(other) for other, _ in beside if other == path]
    if clash:
        raise PlanError(
            f"the format also writes {clash[0]}, which is the file named", kind="bad-option",
            where=str(path), remedy="choose another ending for the file named",
        )  # fmt: skip
    write_files([*beside, (path, made.main)])
    changed = () if format_.needs_function else edits(analysed.program)
    notes = tuple(dict.fromkeys((*made.notes, *(edit.text for edit in changed))))
    return Written(name, (path, *(other for other, _ in beside)), notes)
