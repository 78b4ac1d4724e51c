"""The format that a file names."""

from __future__ import annotations

from pathlib import Path

import msgspec


class _Head(msgspec.Struct):
    format: str = ""


def has_format(path: Path, name: str) -> bool:
    """Whether a file names the format; other faults are left to its reader."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Head).format == name
    except (OSError, ValueError, RecursionError):
        return False
