"""The plan store: one SQLite file of the user's cache folder, shared by processes, bounded in size.

entries   data by kind and key, a digest of all three, its size, and the order of last use

The file is a cache: whoever cannot use it plans without it. It holds data only.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import platformdirs

from ..errors import PlanError

APPLICATION = 0x4D574748  # SQLite's mark of whose file it is: "MWGH"
STORE_VERSION = 1
LIMIT_BYTES = 256 << 20
# A writer holds the file for milliseconds; a process that waits longer goes on without it.
BUSY_S = 5.0

_TABLES = (
    "CREATE INDEX by_use ON entries (used)",
    """CREATE TABLE entries (
  kind TEXT NOT NULL, key TEXT NOT NULL, data BLOB NOT NULL, digest TEXT NOT NULL,
  bytes INTEGER NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (kind, key))""",
)


def store_path() -> Path:
    """Where plans are kept."""
    return Path(platformdirs.user_cache_dir("meshwright")) / "plans.sqlite3"


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a store holds: entries and their bytes by kind, and the bound on all bytes."""

    path: Path
    entries: dict[str, int]
    bytes: dict[str, int]
    limit_bytes: int


@final
@dataclass(frozen=True, slots=True)
class Store:
    """Data by kind and key; what was not used for longest goes when the bound is reached."""

    path: Path
    limit_bytes: int = LIMIT_BYTES

    def get(self, kind: str, key: str) -> bytes | None:
        """The data under a key; None if there is none, or it is damaged.

        Raises:
            PlanError: if the file cannot be used.
        """
        if not self.path.exists():
            return None
        with self._opened() as connection:
            row = connection.execute(
                "SELECT data, digest FROM entries WHERE kind = ? AND key = ?", (kind, key)
            ).fetchone()
            if row is None or not isinstance(row[0], bytes):
                return None
            if _digest(kind, key, row[0]) != row[1]:
                return None  # damaged, or of another key: pages and indices may be damaged too
            connection.execute(
                f"UPDATE entries SET used = {_NEXT} WHERE kind = ? AND key = ?", (kind, key)
            )
            return row[0]

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Keeps data under a key, in place of what was there; all of it or nothing.

        Raises:
            PlanError: if the file cannot be used.
        """
        if len(data) > self.limit_bytes:
            return
        with self._opened() as connection:
            connection.execute(
                f"INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, {_NEXT})",
                (kind, key, data, _digest(kind, key, data), len(data)),
            )
            self._evict(connection)

    def _evict(self, connection: sqlite3.Connection) -> None:
        (held,) = connection.execute("SELECT sum(length(data)) FROM entries").fetchone()
        oldest = connection.execute("SELECT rowid, length(data) FROM entries ORDER BY used")
        gone: list[tuple[int]] = []
        while held > self.limit_bytes:
            rowid, size = oldest.fetchone()
            held -= size
            gone.append((rowid,))
        connection.executemany("DELETE FROM entries WHERE rowid = ?", gone)

    def info(self) -> StoreInfo:
        """What is held.

        Raises:
            PlanError: if the file cannot be used.
        """
        rows: list[tuple[str, int, int]] = []
        if self.path.exists():
            with self._opened() as connection:
                rows = connection.execute(
                    "SELECT kind, count(*), sum(length(data)) FROM entries GROUP BY kind"
                    " ORDER BY kind"
                ).fetchall()
        entries = {kind: count for kind, count, _ in rows}
        return StoreInfo(self.path, entries, {kind: b for kind, _, b in rows}, self.limit_bytes)

    def clear(self) -> None:
        """Forgets everything; a damaged file is deleted.

        Raises:
            PlanError: if the file is of another program, or cannot be written.
        """
        if not self.path.exists():
            return
        try:
            with self._opened() as connection:
                connection.execute("DELETE FROM entries")
            with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_S)) as connection:
                connection.execute("VACUUM")
        except PlanError as error:
            if error.kind != "store-damaged":
                raise
            self._delete()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise _unusable(self.path, error) from error

    def _delete(self) -> None:
        try:
            for ending in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        except OSError as error:
            raise PlanError(
                f"cannot be deleted: {error.strerror}", kind="store", where=str(self.path),
                remedy="delete it by hand",
            ) from error  # fmt: skip

    @contextlib.contextmanager
    def _opened(self) -> Generator[sqlite3.Connection]:
        """A connection inside one transaction, to a file of this version."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
            with contextlib.closing(connection):
                _check_whose(connection, self.path)
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("BEGIN IMMEDIATE")
                with connection:  # commits, or takes back
                    yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:  # of damaged names in messages
            raise _unusable(self.path, error) from error
        except OSError as error:
            raise PlanError(
                f"cannot be made: {error.strerror}", kind="store", where=str(self.path.parent),
                remedy="make the folder writable, or set XDG_CACHE_HOME to another one",
            ) from error  # fmt: skip


_NEXT = "(SELECT coalesce(max(used), 0) + 1 FROM entries)"


def _digest(kind: str, key: str, data: bytes) -> str:
    head = f"{len(kind)} {kind} {len(key)} {key} ".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(head + data, digest_size=16).hexdigest()


def _mark(connection: sqlite3.Connection) -> tuple[int, int, tuple[str, ...]]:
    """(application, version, tables) of a file."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    return application, version, tuple(text for (text,) in rows)


def _check_whose(connection: sqlite3.Connection, path: Path) -> None:
    """Makes the tables in an empty file, refuses those of others."""
    application, version, tables = _mark(connection)
    if (application, version, tables) == (0, 0, ()):
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        if _mark(connection) == (0, 0, ()):  # no other process was faster
            for statement in reversed(_TABLES):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {STORE_VERSION}")
        connection.execute("COMMIT")
        application, version, tables = _mark(connection)
    if application != APPLICATION:
        raise PlanError(
            "is a database of another program", kind="store", where=str(path),
            remedy="move it away",
        )  # fmt: skip
    if version != STORE_VERSION:
        raise PlanError(
            f"is a plan store of version {version}, expected {STORE_VERSION}", kind="store",
            where=str(path), remedy="delete it",
        )  # fmt: skip
    if tables != _TABLES:
        raise _unusable(path, sqlite3.DatabaseError("its tables are not those of one"))


def _unusable(path: Path, error: Exception) -> PlanError:
    text = str(error)
    if "locked" in text:
        return PlanError(
            f"is locked by another process for more than {BUSY_S:g} s", kind="store",
            where=str(path), remedy="wait until it has finished, or stop it",
        )  # fmt: skip
    if any(word in text for word in ("readonly", "unable to open", "full", "disk I/O")):
        return PlanError(
            f"cannot be opened or written: {text}", kind="store", where=str(path),
            remedy="make it writable, or set XDG_CACHE_HOME to another folder",
        )  # fmt: skip
    return PlanError(
        f"is no usable plan store: {text}", kind="store-damaged", where=str(path),
        remedy="run `meshwright cache clear`",
    )  # fmt: skip
