"""Changes of SQLite files that SQLite itself makes: sound pages that say something else."""

from __future__ import annotations

import contextlib
import sqlite3
from random import Random
from typing import Any

MODE = slice(18, 20)  # bytes of the header that say whether there is a log beside the file
ROLLBACK = b"\x01\x01"
VALUES: tuple[Any, ...] = (
    None, 0, 1, -1, 2**62, -(2**63), 0.5, 1e300, float("inf"), "", "x", "0", "\x00", "é" * 50, b"",
    b"\xff\xfe", b"x" * 1000, "{}", "null", "[" * 2000, '{"version": 1}',
)  # fmt: skip
SCHEMA = (
    "DROP TABLE {t}", "ALTER TABLE {t} RENAME TO gone", "DELETE FROM {t}",
    "ALTER TABLE {t} RENAME COLUMN {c} TO gone", "ALTER TABLE {t} ADD COLUMN more TEXT",
    "PRAGMA user_version = 0", "PRAGMA user_version = 99", "PRAGMA application_id = 0",
    "PRAGMA application_id = 7", "CREATE TABLE more (x)", "VACUUM",
    "CREATE TRIGGER t BEFORE INSERT ON {t} BEGIN SELECT RAISE(ABORT, 'no'); END",
    "CREATE TRIGGER u BEFORE UPDATE ON {t} BEGIN SELECT RAISE(ABORT, 'no'); END",
    "INSERT INTO {t} SELECT * FROM {t}",
)  # fmt: skip


def changed(rng: Random, data: bytes) -> tuple[str, bytes]:
    """A database with a cell, a row or its schema changed, and how."""
    mode = data[MODE]
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(data[: MODE.start] + ROLLBACK + data[MODE.stop :])
        how = _change(rng, connection)
        found = connection.serialize()
    return how, found[: MODE.start] + mode + found[MODE.stop :]


def _change(rng: Random, connection: sqlite3.Connection) -> str:
    names = [name for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    )]  # fmt: skip
    table = rng.choice(names)
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    column = rng.choice(columns)
    row = f"(SELECT rowid FROM {table} ORDER BY random() LIMIT 1)"
    if rng.random() < 0.3:
        statement = rng.choice(SCHEMA).format(t=table, c=column)
        with contextlib.suppress(sqlite3.Error):
            connection.execute(statement)
        return statement
    way = rng.choice(("value", "value", "near", "near", "other", "delete", "schema"))
    with contextlib.suppress(sqlite3.Error):
        if way == "value":
            value = rng.choice(VALUES)
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = {row}", (value,))
        elif way == "near":
            _near(rng, connection, table, column)
        elif way == "other":  # the cell of another row, or of another column
            source = rng.choice(columns)
            other = f"(SELECT {source} FROM {table} ORDER BY random() LIMIT 1)"
            connection.execute(f"UPDATE {table} SET {column} = {other} WHERE rowid = {row}")
        elif way == "delete":
            connection.execute(f"DELETE FROM {table} WHERE rowid = {row}")
        else:
            connection.execute("PRAGMA writable_schema = 1")
            connection.execute(
                "UPDATE sqlite_master SET sql = replace(sql, ?, ?)",
                (rng.choice((column, "TEXT", "NOT NULL", "(", table)), rng.choice(("", "x", "é"))),
            )
    return f"{way} of {table}.{column}"


def _near(rng: Random, connection: sqlite3.Connection, table: str, column: str) -> None:
    """One character, digit or bit of a cell is another."""
    rows = connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
    if not rows:
        return
    rowid, value = rng.choice(rows)
    if isinstance(value, str) and value:
        at = rng.randrange(len(value))
        value = value[:at] + rng.choice("0123456789ax") + value[at + 1 :]
    elif isinstance(value, bytes) and value:
        at = rng.randrange(len(value))
        value = value[:at] + bytes([value[at] ^ (1 << rng.randrange(8))]) + value[at + 1 :]
    elif isinstance(value, int | float):
        value = rng.choice((value + 1, value * 2, -value))
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, rowid))
