"""The plan store as a file: bounded, shared, and never trusted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import OrderedDict
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.common.errors import PlanError
from planner.common.store.database import APPLICATION, Store

LIMIT = 100
KEYS = ("a", "b", "c", "d", "e")
ACTIONS = st.lists(
    st.tuples(st.sampled_from(("get", "put")), st.sampled_from(KEYS), st.integers(0, 120)),
    max_size=25,
)


@given(ACTIONS)
@settings(max_examples=25)
def test_what_was_not_used_for_longest_goes(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, str, int]]
) -> None:
    """Against a dictionary in the order of use."""
    store = Store(tmp_path_factory.mktemp("store") / "s.sqlite3", LIMIT)
    model: OrderedDict[str, bytes] = OrderedDict()
    for step, (action, key, size) in enumerate(actions):
        if action == "get":
            assert store.get("plan", key) == model.get(key)
            if key in model:
                model.move_to_end(key)
        else:
            data = bytes([step]) * size
            store.put("plan", key, data)
            if size > LIMIT:
                continue
            model[key] = data
            model.move_to_end(key)
            while sum(map(len, model.values())) > LIMIT:
                model.popitem(last=False)
        assert sum(store.info().bytes.values()) == sum(map(len, model.values()))
    for key in KEYS:
        assert store.get("plan", key) == model.get(key)


def test_kinds_do_not_meet(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite3")
    store.put("plan", "k", b"1")
    assert store.get("stage", "k") is None
    store.put("stage", "k", b"2")
    assert store.get("plan", "k") == b"1"
    assert store.info().entries == {"plan": 1, "stage": 1}
    store.clear()
    assert store.info().entries == {}
    assert store.get("plan", "k") is None


def test_looking_makes_no_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "folder" / "s.sqlite3")
    assert store.get("plan", "k") is None
    assert store.info().entries == {}
    store.clear()
    assert not list(tmp_path.iterdir())


def _fill(path: Path, worker: int) -> None:
    store = Store(path)
    for i in range(12):
        store.put("plan", f"{worker}-{i}", f"{worker} {i}".encode() * 100)
        assert store.get("plan", f"{worker}-{i // 2}") is not None


def test_processes_share_it_from_its_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_fill, args=(path, w)) for w in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 2
    assert Store(path).info().entries == {"plan": 24}
    for w in range(2):
        for i in range(12):
            assert Store(path).get("plan", f"{w}-{i}") == f"{w} {i}".encode() * 100


WRITER = """
import sys
from pathlib import Path
from planner.common.store.database import Store
store, i = Store(Path(sys.argv[1]), 1 << 20), 0
while True:
    store.put("plan", str(i % 50), bytes([i % 256]) * 30_000)
    i += 1
    print(i, flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_ends_while_it_writes_leaves_it_whole(tmp_path: Path, how: int) -> None:
    path = tmp_path / "s.sqlite3"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).resolve().parents[4]), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert writer.stdout is not None
    for _ in range(20):
        assert writer.stdout.readline()
    time.sleep(0.003)
    writer.send_signal(how)
    writer.wait()
    writer.stdout.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store = Store(path)
    held = [data for i in range(50) if (data := store.get("plan", str(i))) is not None]
    assert len(held) >= 19
    assert all(len(set(data)) == 1 and len(data) == 30_000 for data in held)


def test_a_damaged_entry_is_none(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite3")
    for key, wrong in (("bytes", b"other"), ("text", "good"), ("number", 7)):
        store.put("plan", key, b"good")
        with closing(sqlite3.connect(store.path)) as connection:
            connection.execute("UPDATE entries SET data = ? WHERE key = ?", (wrong, key))
            connection.commit()
        assert store.get("plan", key) is None
        store.put("plan", key, b"good")
        assert store.get("plan", key) == b"good"


def test_an_entry_that_stands_under_another_key_is_none(tmp_path: Path) -> None:
    """As where a damaged index leads from a key to the row of another."""
    store = Store(tmp_path / "s.sqlite3")
    for key in ("one", "two"):
        store.put("plan", key, key.encode())
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(
            "UPDATE entries SET (data, digest) = (SELECT data, digest FROM entries WHERE key='two')"
        )
        connection.commit()
    assert store.get("plan", "one") is None
    assert store.get("plan", "two") == b"two"


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE entries RENAME COLUMN data TO gone", "DROP INDEX by_use", "CREATE TABLE more (x)",
     "CREATE TRIGGER t BEFORE INSERT ON entries BEGIN SELECT RAISE(ABORT, 'no'); END"],
)  # fmt: skip
def test_other_tables_are_refused_and_clear_makes_them_anew(tmp_path: Path, change: str) -> None:
    store = Store(tmp_path / "s.sqlite3")
    store.put("plan", "k", b"1")
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(change)
        connection.commit()
    assert refusal(store).kind == "store-damaged"
    store.clear()
    store.put("plan", "k", b"2")
    assert store.get("plan", "k") == b"2"


def refusal(store: Store) -> PlanError:
    """The same error for reading and writing."""
    with pytest.raises(PlanError) as read:
        store.get("plan", "k")
    with pytest.raises(PlanError) as written:
        store.put("plan", "k", b"1")
    assert str(read.value) == str(written.value)
    assert read.value.where == str(store.path)
    assert read.value.remedy
    assert "\n" not in str(read.value)
    return read.value


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"\0" * 5000, b"SQLite format 3"])
def test_a_corrupt_file_is_refused_and_clear_deletes_it(tmp_path: Path, content: bytes) -> None:
    store = Store(tmp_path / "s.sqlite3")
    store.path.write_bytes(content)
    assert refusal(store).kind == "store-damaged"
    assert store.path.read_bytes() == content
    store.clear()
    store.put("plan", "k", b"1")
    assert store.get("plan", "k") == b"1"


def test_a_store_cut_short_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite3")
    for i in range(20):
        store.put("plan", str(i), bytes(10_000))
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = store.path.read_bytes()
    store.path.write_bytes(data[: len(data) // 3])
    assert refusal(store).kind == "store-damaged"


def test_a_database_of_another_program_stays_as_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite3")
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("CREATE TABLE letters (text)")
        connection.execute("INSERT INTO letters VALUES ('dear')")
        connection.commit()
    before = store.path.read_bytes()
    assert "another program" in str(refusal(store))
    with pytest.raises(PlanError, match="another program"):
        store.clear()
    assert store.path.read_bytes() == before


def test_another_version_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite3")
    store.put("plan", "k", b"1")
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
        connection.execute("PRAGMA user_version = 99")
    assert "version 99" in str(refusal(store))


def test_a_lock_that_is_held_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.common.store.database.BUSY_S", 0.1)
    store = Store(tmp_path / "s.sqlite3")
    store.put("plan", "k", b"1")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(PlanError, match="is locked by another process"):
            store.put("plan", "k", b"2")
    assert store.get("plan", "k") == b"1"


def test_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    store = Store(tmp_path / "file" / "s.sqlite3")
    with pytest.raises(PlanError, match="cannot be made"):
        store.put("plan", "k", b"1")
