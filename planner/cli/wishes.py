"""Options of the command line as settings of a plan; all are checked before any work starts."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import costmodel
from profiles import ProfileError

from ..common.errors import PlanError
from .failure import profile_message

_MESH = re.compile(r"[1-9]\d{0,6}(x[1-9]\d{0,6})*")
_NAMED_MESH = re.compile(r"[A-Za-z]\w*=[1-9]\d{0,6}(,[A-Za-z]\w*=[1-9]\d{0,6})*", re.ASCII)


def _bad(flag: str, message: str, remedy: str) -> PlanError:
    return PlanError(message, kind="bad-option", where=flag, remedy=remedy)


def memory_bytes(text: str) -> int:
    """Bytes of `70GB` or `70GiB`."""
    try:
        return costmodel.parse_bytes(text)
    except ProfileError as error:
        raise _bad("--memory", profile_message(error), error.remedy) from error


def time_limit_s(seconds: float) -> float:
    """A number of seconds above 0."""
    if not math.isfinite(seconds) or seconds <= 0:
        raise _bad("--time-limit", f"must be above 0, got {seconds:g}", "write seconds, such as 60")
    return seconds


def mesh_shape(text: str) -> tuple[int, ...] | tuple[tuple[str, int], ...]:
    """Sizes of `2x4`, or names and sizes of `data=2,tensor=4`."""
    if _NAMED_MESH.fullmatch(text):
        pairs = (pair.split("=") for pair in text.split(","))
        return tuple((name, int(size)) for name, size in pairs)
    if not _MESH.fullmatch(text):
        raise _bad(
            "--mesh", f"'{text}' is not a shape",
            "write sizes joined by x, such as 2x4, or names and sizes, such as data=2,tensor=4",
        )  # fmt: skip
    return tuple(int(size) for size in text.split("x"))


def stages(text: str) -> int | str:
    """A number of stages, `auto` or `off`."""
    return int(text) if re.fullmatch(r"\d{1,6}", text) else text


def pins(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(pattern, sharding) of each `PATTERN=SPEC`; the brackets of a sharding may be left out."""
    pairs = (_pair("--pin", text, "'params/*/w1=-,8'") for text in texts)
    return tuple((name, spec if spec[0] == "[" else f"[{spec}]") for name, spec in pairs)


def forbidden(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """(pattern, dimension) of each `PATTERN=DIM`."""
    found: list[tuple[str, int]] = []
    for text in texts:
        pattern, dim = _pair("--forbid", text, "'batch/*=1'")
        if not re.fullmatch(r"-?\d{1,3}", dim):
            raise _bad("--forbid", f"'{dim}' is not a dimension", "write a number, such as 0 or -1")
        found.append((pattern, int(dim)))
    return tuple(found)


def _pair(flag: str, text: str, example: str) -> tuple[str, str]:
    pattern, equals, value = text.rpartition("=")
    if not equals or not pattern.strip() or not value.strip():
        raise _bad(flag, f"'{text}' is not of the form PATTERN=VALUE", f"write such as {example}")
    return pattern.strip(), value.strip()


def substitutions(worth: str | None, *, off: bool) -> bool | str | None:
    """Which rewrites are wanted; None if nothing is said.

    Raises:
        PlanError: if some are wanted, and none.
    """
    if off and worth is not None:
        raise _bad("--substitutions", "is given with --no-substitutions", "leave one of them out")
    return False if off else worth


def check_writable(path: Path) -> None:
    """Finds out before the search whether its plan can be written.

    Raises:
        PlanError: if the folder does not exist or cannot be written, or `path` is no plain file.
    """
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "not a plain file"
        raise PlanError(
            f"cannot be written: it is {kind}", kind="plan-file", where=str(path),
            remedy="name a file, such as plan.json",
        )  # fmt: skip
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise PlanError(
            f"cannot be written: {error.strerror}", kind="plan-file", where=str(path),
            remedy="choose a folder that exists and is writable",
        ) from error  # fmt: skip


def merged(settings: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The target's settings with those of the command line, which win; wishes add up."""
    both = settings | given
    options = settings.get("options")
    for name in ("pins", "forbidden"):
        if name in given:
            held = settings.get(name, getattr(options, name, ()))
            both[name] = (*held, *given[name])
    return both
