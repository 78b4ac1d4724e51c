"""Measured profiles of the machines at hand, in one SQLite file of the user's cache folder.

profiles   one profile per machine and number of devices, as JSON
samples    every timing behind them, with its spread

Each profile has a digest of all that its row and its samples say, so that a damaged file is not
taken for a measurement.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sqlite3
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from .errors import ProfileError
from .schema import Profile, convert

SCHEMA_VERSION = 2
WITHOUT_DIGESTS = 1  # is read as it is, and gets them when it is next written
# A writer holds the file for milliseconds; who waits longer waits for something broken.
BUSY_S = 5.0
AGAIN = "delete the file and run `meshwright profile` again"

_TABLES = """
CREATE TABLE IF NOT EXISTS profiles (
  name TEXT NOT NULL, devices INTEGER NOT NULL, machine TEXT NOT NULL, profile TEXT NOT NULL,
  digest TEXT NOT NULL DEFAULT '', PRIMARY KEY (name, devices));
CREATE TABLE IF NOT EXISTS samples (
  name TEXT NOT NULL, devices INTEGER NOT NULL, op TEXT NOT NULL, dtype TEXT NOT NULL,
  sizes TEXT NOT NULL, median_s REAL NOT NULL, low_s REAL NOT NULL, high_s REAL NOT NULL,
  repeats INTEGER NOT NULL, date TEXT NOT NULL,
  PRIMARY KEY (name, devices, op, dtype, sizes));
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timing with its spread.

    op: `product`, a kind of collective, or another operation.
    sizes: what the timing is of, as text.
    low_s, high_s: first and third quartile of `repeats` runs, `median_s` between them.
    """

    op: str
    dtype: str
    sizes: str
    median_s: float
    low_s: float
    high_s: float
    repeats: int


def database_path() -> Path:
    """Where measurements are kept."""
    return Path(platformdirs.user_cache_dir("meshwright")) / "profiles.sqlite3"


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_name() -> str:
    """What tells this machine from another that may share the folder."""
    return f"{platform.node()}, {platform.machine()}, {cores()} cores"


def stored_profile(name: str, devices: int, path: Path | None = None) -> Profile | None:
    """The measured profile of this machine under a name, for so many devices at once.

    Returns:
        None if nothing was measured here: no file, no such entry, or the entry of another machine.

    Raises:
        ProfileError: if the file cannot be read, is of another version or holds no valid profile.
    """
    where = path or database_path()
    if not where.exists():
        return None
    with _opened(where, write=False) as connection:
        found = _row(connection, name, devices, where)
    if found is None or found[0] != machine_name():
        return None
    return _profile_of(found[1], name, devices, where)


def stored_profiles(path: Path | None = None) -> tuple[tuple[str, int, Profile], ...]:
    """Name, devices and profile of everything measured on this machine, in order."""
    where = path or database_path()
    if not where.exists():
        return ()
    found: list[tuple[str, int, Profile]] = []
    with _opened(where, write=False) as connection:
        keys = connection.execute("SELECT name, devices FROM profiles ORDER BY name, devices")
        for name, devices in keys.fetchall():
            row = _row(connection, name, devices, where)
            if row is not None and row[0] == machine_name():
                found.append((name, devices, _profile_of(row[1], name, devices, where)))
    return tuple(found)


def store_profile(
    profile: Profile,
    devices: int,
    samples: Iterable[Sample] = (),
    path: Path | None = None,
    *,
    merge: Callable[[Profile, Profile], Profile] | None = None,
) -> Profile:
    """Keeps a profile and the timings behind it; all of it or nothing.

    Args:
        profile: measured on this machine, or merged from a file.
        devices: how many were busy at once.
        samples: replace those of the same name and devices where given.
        path: of the database.
        merge: joins what is stored, if anything, with `profile`; without it `profile` replaces it.

    Returns:
        What is stored now.

    Raises:
        ProfileError: if the file cannot be written.
    """
    where = path or database_path()
    rows = [(profile.name, devices, *_fields(sample)) for sample in samples]
    with _opened(where, write=True) as connection:
        old = None if merge is None else _row(connection, profile.name, devices, where)
        if old is not None and merge is not None and old[0] == machine_name():
            profile = merge(_profile_of(old[1], profile.name, devices, where), profile)
        text = msgspec.json.encode(profile).decode()
        connection.execute(
            "INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, '')",
            (profile.name, devices, machine_name(), text),
        )
        if rows:
            connection.execute(
                "DELETE FROM samples WHERE name = ? AND devices = ?", (profile.name, devices)
            )
            connection.executemany(
                "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, date('now'))", rows
            )
        _seal(connection, profile.name, devices)
    return profile


def _row(
    connection: sqlite3.Connection, name: str, devices: int, where: Path
) -> tuple[str, str] | None:
    """Machine and text of a profile, if there is one.

    Raises:
        ProfileError: if the row, or a timing behind it, was changed since it was written.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    row = connection.execute(
        "SELECT * FROM profiles WHERE name = ? AND devices = ?", (name, devices)
    ).fetchone()
    if row is None:
        return None
    if version != WITHOUT_DIGESTS and row[-1] != _digest(connection, name, devices):
        raise ProfileError(
            "is damaged: its digest is not that of what it holds",
            where=f"{where}, profile {name!r} of {devices} devices", remedy=AGAIN,
        )  # fmt: skip
    return row[2], row[3]


def _seal(connection: sqlite3.Connection, name: str, devices: int) -> None:
    connection.execute(
        "UPDATE profiles SET digest = ? WHERE name = ? AND devices = ?",
        (_digest(connection, name, devices), name, devices),
    )


def _digest(connection: sqlite3.Connection, name: str, devices: int) -> str:
    """Of all that is held of a profile."""
    found = hashlib.sha256()
    for table in ("profiles", "samples"):
        columns = "name, devices, machine, profile" if table == "profiles" else "*"
        rows = connection.execute(
            f"SELECT {columns} FROM {table} WHERE name = ? AND devices = ? ORDER BY rowid",
            (name, devices),
        )
        for row in rows:
            found.update(repr(row).encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:32]


def _fields(s: Sample) -> tuple[str, str, str, float, float, float, int]:
    return (s.op, s.dtype, s.sizes, s.median_s, s.low_s, s.high_s, s.repeats)


def stored_samples(name: str, devices: int, path: Path | None = None) -> tuple[Sample, ...]:
    """The timings behind a stored profile, in order of operation and size."""
    where = path or database_path()
    if not where.exists():
        return ()
    with _opened(where, write=False) as connection:
        if _row(connection, name, devices, where) is None:
            return ()
        rows = connection.execute(
            "SELECT op, dtype, sizes, median_s, low_s, high_s, repeats FROM samples "
            "WHERE name = ? AND devices = ? ORDER BY op, dtype, rowid",
            (name, devices),
        ).fetchall()
    return tuple(Sample(*row) for row in rows)


def check_storable(path: Path | None = None) -> None:
    """Says before anything is measured that it could not be kept.

    Raises:
        ProfileError: if the file cannot be written, is broken or of another version.
    """
    with _opened(path or database_path(), write=True) as connection:
        connection.execute("BEGIN IMMEDIATE")


@contextlib.contextmanager
def measuring(path: Path | None = None, *, wait_s: float = BUSY_S) -> Generator[None]:
    """Holds the right to measure on this machine: two at once would time each other.

    The lock is that of an SQLite file beside the database, which the system drops with the
    process, however it ends.

    Raises:
        ProfileError: if another process holds it for longer than `wait_s`.
    """
    where = (path or database_path()).with_suffix(".lock")
    _folder(where)
    try:
        connection = sqlite3.connect(where, timeout=wait_s, isolation_level=None)
    except sqlite3.Error as error:
        raise _unusable(where, error) from error
    with contextlib.closing(connection):
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise _unusable(where, error) from error
            raise ProfileError(
                "another process is measuring on this machine", where=str(where),
                remedy="wait until it has finished, or stop it",
            ) from error  # fmt: skip
        except sqlite3.Error as error:
            raise _unusable(where, error) from error
        yield
        connection.execute("ROLLBACK")


@contextlib.contextmanager
def _opened(path: Path, *, write: bool) -> Generator[sqlite3.Connection]:
    """A connection inside one transaction, to a file of this version."""
    if write:
        _folder(path)
    # what a writer that was killed left half done can be taken back by a writer only
    torn = path.with_name(f"{path.name}-journal").exists()
    mode = "rwc" if write else "rw" if torn else "ro"
    try:
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S)
        with contextlib.closing(connection):
            _check_version(connection, path, write=write)
            with connection:
                yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:  # of damaged names in messages
        raise _unusable(path, error) from error


def _check_version(connection: sqlite3.Connection, path: Path, *, write: bool) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == 0 and tables == 0 and write:
        connection.executescript(f"{_TABLES} PRAGMA user_version = {SCHEMA_VERSION};")
    elif version == WITHOUT_DIGESTS:
        if write:
            _give_digests(connection)
    elif version != SCHEMA_VERSION:
        found = f"holds measurements of version {version}, expected {SCHEMA_VERSION}"
        if not tables:
            found = "is empty, expected measurements"
        raise ProfileError(found, where=str(path), remedy=AGAIN)


def _give_digests(connection: sqlite3.Connection) -> None:
    """Makes a file without digests one of this version."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ALTER TABLE profiles ADD COLUMN digest TEXT NOT NULL DEFAULT ''")
        for name, devices in connection.execute("SELECT name, devices FROM profiles").fetchall():
            _seal(connection, name, devices)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProfileError(
            f"cannot be made: {error.strerror}", where=str(path.parent),
            remedy="make the folder writable, or set XDG_CACHE_HOME to another one",
        ) from error  # fmt: skip


def _unusable(path: Path, error: Exception) -> ProfileError:
    text = str(error)
    if "locked" in text:
        return ProfileError(
            f"is locked by another process for more than {BUSY_S:g} s", where=str(path),
            remedy="wait until it has finished, or stop it",
        )  # fmt: skip
    if "readonly" in text or "unable to open" in text:
        return ProfileError(
            f"cannot be opened: {text}", where=str(path),
            remedy="make it writable, or set XDG_CACHE_HOME to another folder",
        )  # fmt: skip
    return ProfileError(
        f"is no usable database of measurements: {text}", where=str(path), remedy=AGAIN
    )


def _profile_of(text: str, name: str, devices: int, path: Path) -> Profile:
    where = f"{path}, profile {name!r} of {devices} devices"
    try:
        raw = msgspec.json.decode(text)
        return convert(raw, Profile, where=where)
    except (msgspec.DecodeError, TypeError, RecursionError) as error:
        raise ProfileError(f"is not JSON: {error}", where=where, remedy=AGAIN) from error
    except ProfileError as error:
        raise ProfileError(error.message, where=error.where, remedy=AGAIN) from error
