"""Reads a profile of any known format."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from .graph import LayerGraph, bad_profile
from .readers import amp, piper, text

LARGEST_BYTES = 64 << 20
TEXT_FORMATS = (piper, text)


def read_profile(path: Path, *, batch: int | None = None) -> dict[str, LayerGraph]:
    """Graphs by device kind; one kind, called '', for formats that know no kinds.

    Args:
        path: PipeDream or DAPPLE text or Piper JSON, either of them compressed with gzip or not;
            any one of AMP's arrays.
        batch: samples in the profiled micro-batch, for formats that do not say.

    Raises:
        PlanError: on a missing or too large file, an unknown format or a bad profile.
    """
    if path.suffix == ".npy":
        return amp.read(path)
    content = read_text(path)
    for reader in TEXT_FORMATS:
        if reader.accepts(path, content):
            return {"": reader.read(path, content, batch=batch)}
    raise bad_profile(
        path.name, "is none of the known formats: PipeDream or DAPPLE text, Piper JSON, AMP "
        "arrays (.npy)", "see docs for the formats, or check that the file is whole",
    )  # fmt: skip


def read_text(path: Path) -> str:
    """Text of a file, unpacked if its name ends in .gz.

    Raises:
        PlanError: if it is missing, too large, not UTF-8 or damaged.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                data = file.read(LARGEST_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise bad_profile(path.name, f"has more than {LARGEST_BYTES} bytes")
        return data.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise bad_profile(path.name, f"cannot be read: {error}", "check path and file") from error
