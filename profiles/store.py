"""Reads, writes and lists profiles: versioned JSON, strict, with big tables in `.csv.gz` beside."""

from __future__ import annotations

import contextlib
import csv
import difflib
import functools
import glob
import gzip
import io
import json
import secrets
import time
import zlib
from pathlib import Path
from typing import Any, cast

import msgspec

from .errors import ProfileError
from .schema import (
    AttentionRow,
    AttentionTable,
    CollectiveRow,
    CollectiveTable,
    GemmRow,
    GemmTable,
    OpTable,
    Profile,
    convert,
)

DATA = Path(__file__).parent / "data"
DRAFT = "[0-9a-f]" * 16  # the end of a temporary name
MOST_BYTES = 64 << 20  # of a table
STALE_S = 3600.0
COMPLETE = "take a complete file, as `meshwright profile --export` writes it"


@functools.lru_cache(maxsize=1)
def _shipped_names() -> dict[str, str]:
    """Every name and alias of a shipped profile, with the stem of its file."""
    names: dict[str, str] = {}
    for path in sorted(DATA.glob("*.json")):
        raw = json.loads(path.read_text(encoding="utf-8"))
        for name in (raw["name"], *raw.get("aliases", ())):
            if names.setdefault(name, path.stem) != path.stem:
                raise ProfileError(
                    f"the name {name!r} is taken by {names[name]}.json", where=path.name
                )
    return names


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles, without aliases, in alphabetical order."""
    return tuple(sorted(set(_shipped_names().values())))


def profile_aliases() -> tuple[str, ...]:
    """Every name that `load_profile` answers to, in alphabetical order."""
    return tuple(sorted(_shipped_names()))


def load_profile(name_or_path: str | Path) -> Profile:
    """Loads a shipped profile by name or alias, or any profile by the path of its JSON file.

    Raises:
        ProfileError: if there is no such profile, with the nearest names; or if it is malformed.
    """
    text = str(name_or_path)
    if stem := _shipped_names().get(text.lower()):
        return _shipped(stem)
    path = Path(text)
    if path.suffix == ".json":
        return _read(path)
    near = difflib.get_close_matches(text.lower(), profile_aliases(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "name one of these or a .json file"
    known = ", ".join(profile_names())
    raise ProfileError(f"no device is called {text!r}; known: {known}", remedy=hint)


@functools.lru_cache(maxsize=64)
def _shipped(stem: str) -> Profile:
    return _read(DATA / f"{stem}.json")


def _read(path: Path) -> Profile:
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ProfileError(
            f"cannot be read: {error.strerror}", where=str(path),
            remedy="name a file that is there and may be read",
        ) from error  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"is not JSON: {error}", where=str(path), remedy=COMPLETE) from error
    if isinstance(raw, dict):
        keys = cast("dict[str, Any]", raw)
        raw = {key: _with_rows(value, path) for key, value in keys.items()}
    return convert(raw, Profile, where=str(path))


def _with_rows(value: Any, path: Path) -> Any:
    """Replaces `file` in the description of a table by the `rows` of that file."""
    if not isinstance(value, dict) or "file" not in value:
        return cast("object", value)
    described = dict(cast("dict[str, Any]", value))
    file = path.parent / Path(str(described.pop("file"))).name
    return described | {"rows": _csv_rows(file)}


def _csv_rows(path: Path) -> list[list[str | int | float]]:
    headers = [row.__struct_fields__ for row in (CollectiveRow, GemmRow, AttentionRow)]
    try:
        with gzip.open(path) as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        first, *rest = csv.reader(io.StringIO(data.decode("utf-8"), newline=""))
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ProfileError(
            f"cannot be read as .csv.gz: {text}", where=str(path),
            remedy="put the table beside the profile, or its rows inside",
        ) from error  # fmt: skip
    if tuple(first) not in headers:
        known = ", ".join(str(list(header)) for header in headers)
        raise ProfileError(
            f"the first line must name the columns of a table, one of {known}; found {first}",
            where=path.name,
        )
    return [_csv_row(row, f"{path.name}, line {i}") for i, row in enumerate(rest, start=2)]


def _csv_row(row: list[str], where: str) -> list[str | int | float]:
    try:
        return [row[0], *map(int, row[1:-1]), float(row[-1])]
    except (ValueError, IndexError) as error:
        raise ProfileError(
            f"expected integers and a last number of seconds, found {row}", where=where
        ) from error


def save_profile(profile: Profile, path: Path) -> None:
    """Writes a profile as one JSON file with its tables inside; equal profiles, equal bytes.

    The file appears whole or not at all.

    Raises:
        ProfileError: if it cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n"
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fresh.write_bytes(text)
        fresh.replace(path)
        _forget_drafts(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ProfileError(
            f"cannot be written: {error.strerror}", where=str(path),
            remedy="name a file in a folder that exists and may be written",
        ) from error  # fmt: skip


def _forget_drafts(path: Path) -> None:
    """Deletes what writers of a file left that were killed; not what another one writes now."""
    with contextlib.suppress(OSError):
        for draft in path.parent.glob(f".{glob.escape(path.name)}.{DRAFT}"):
            if time.time() - draft.stat().st_mtime > STALE_S:
                draft.unlink(missing_ok=True)


def merge_profiles(base: Profile, newer: Profile) -> Profile:
    """`newer`, with the tables' rows of `base` where `newer` has no row for the same key.

    Raises:
        ProfileError: if the two profiles are not of the same machine, or contradict each other.
    """
    if base.name != newer.name:
        raise ProfileError(
            f"profiles of {base.name!r} and {newer.name!r} cannot be merged",
            remedy="merge profiles of one machine only",
        )
    try:
        return msgspec.structs.replace(
            newer,
            collectives=_merge_tables(base.collectives, newer.collectives),
            gemm=_merge_tables(base.gemm, newer.gemm),
            ops=_merge_tables(base.ops, newer.ops),
            attention=_merge_tables(base.attention, newer.attention),
        )
    except ValueError as error:  # a table of one against a figure of the other
        raise ProfileError(
            f"profiles of {base.name!r} cannot be merged: {error}",
            remedy="measure again, or delete the older one",
        ) from error


def _merge_tables(
    base: Any, newer: CollectiveTable | GemmTable | OpTable | AttentionTable | None
) -> Any:
    if base is None or newer is None:
        return newer if base is None else base
    rows: dict[Any, Any] = {}
    for row in (*base.rows, *newer.rows):
        rows[msgspec.structs.astuple(row)[:-1]] = row
    return msgspec.structs.replace(newer, rows=tuple(rows[key] for key in sorted(rows)))
