"""Files are written under temporary names and renamed: all of them or none."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from .errors import PlanError


def write_files(files: Sequence[tuple[Path, bytes]], *, kind: str = "output") -> None:
    """Writes files, the last one last; if one fails, those before it are as they were.

    Args:
        files: paths and contents.
        kind: of the error.

    Raises:
        PlanError: if a folder cannot be written, or a path is no plain file.
    """
    written: list[tuple[Path, Path]] = []
    path = Path()
    try:
        try:
            for path, data in files:
                target = path.resolve()
                if target.exists() and not target.is_file():
                    raise OSError(0, what_it_is(target))
                beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
                written.append((beside, target))
                with beside.open("xb") as out:
                    out.write(data)
            for beside, target in written:
                beside.replace(target)
        finally:
            for beside, _ in written:
                beside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise PlanError(
            f"cannot be written: {reason(error)}", kind=kind, where=str(path),
            remedy="choose a file in a folder that exists and is writable",
        ) from error  # fmt: skip


def what_it_is(path: Path) -> str:
    """What stands where a plain file should."""
    return "it is a folder" if path.is_dir() else "it is not a plain file"


def reason(error: Exception) -> str:
    """Why a file could not be read or written."""
    return getattr(error, "strerror", None) or str(error)
