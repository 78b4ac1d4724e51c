"""Files are written under temporary names and renamed: all of them or none."""

from __future__ import annotations

import glob
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .errors import PlanError

DRAFT = "[0-9a-f]" * 16  # the end of a temporary name
STALE_S = 3600.0


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
                _forget_drafts(target)
        finally:
            for beside, _ in written:
                beside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise PlanError(
            f"cannot be written: {reason(error)}", kind=kind, where=str(path),
            remedy="choose a file in a folder that exists and is writable",
        ) from error  # fmt: skip


def _forget_drafts(target: Path) -> None:
    """Deletes what writers of a file left that were killed; not what another one writes now."""
    with suppress(OSError):
        for draft in target.parent.glob(f".{glob.escape(target.name)}.{DRAFT}"):
            if time.time() - draft.stat().st_mtime > STALE_S:
                draft.unlink(missing_ok=True)


def what_it_is(path: Path) -> str:
    """What stands where a plain file should."""
    return "it is a folder" if path.is_dir() else "it is not a plain file"


def reason(error: Exception) -> str:
    """Why a file could not be read or written."""
    return getattr(error, "strerror", None) or str(error)
