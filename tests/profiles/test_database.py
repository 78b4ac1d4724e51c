from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import profiles.database as database
from costmodel import list_clusters, parse_cluster
from profiles import (
    Profile,
    ProfileError,
    Sample,
    database_path,
    load_profile,
    measuring,
    merge_profiles,
    store_profile,
    stored_profile,
    stored_profiles,
    stored_samples,
)

SAMPLE = Sample("copy", "float32", "1024", 2e-6, 1e-6, 3e-6, 5)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return database_path()


def measured(name: str = "host", peak: float = 1e10) -> Profile:
    base = load_profile("host")
    device = msgspec.structs.replace(
        base.device, name=name, evidence="measured", peak_flops=(("float32", peak),)
    )
    return msgspec.structs.replace(base, name=name, aliases=(), device=device)


def test_nothing_is_stored_before_anything_was_measured(path: Path) -> None:
    assert stored_profile("host", 4) is None
    assert stored_profiles() == ()
    assert stored_samples("host", 4) == ()
    assert not path.exists()


def test_what_was_stored_comes_back_with_its_spread(path: Path) -> None:
    store_profile(measured(), 4, (SAMPLE,))
    assert stored_profile("host", 4) == measured()
    assert stored_profile("host", 2) is None
    assert stored_samples("host", 4) == (SAMPLE,)
    assert [(name, n) for name, n, _ in stored_profiles()] == [("host", 4)]
    store_profile(measured(peak=2e10), 4, (SAMPLE, SAMPLE)[:1])
    found = stored_profile("host", 4)
    assert found is not None
    assert found.device.peak("float32") == 2e10


def test_plans_for_the_host_use_what_was_measured_with_as_many_devices(path: Path) -> None:
    assert parse_cluster("4xhost").device.evidence == "assumed"
    store_profile(measured(), 4)
    assert parse_cluster("4xhost").device.evidence == "measured"
    assert parse_cluster("host", host_devices=4).device.peak("float32") == 1e10
    assert parse_cluster("8xhost").device.evidence == "assumed"
    assert sum(c.name == "host" for c in list_clusters()) == 2


def test_other_devices_are_found_by_the_name_they_were_measured_under(path: Path) -> None:
    with pytest.raises(ProfileError, match="no device is called 'some-gpu'"):
        parse_cluster("8xsome-gpu")
    store_profile(measured("some-gpu"), 1)
    assert parse_cluster("8xsome-gpu").device.evidence == "measured"
    store_profile(measured("h100"), 1)
    assert parse_cluster("8xh100").device.evidence == "published"


def test_measurements_of_another_machine_are_not_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_profile(measured(), 4)
    monkeypatch.setattr(database, "machine_name", lambda: "elsewhere, x86_64, 96 cores")
    assert stored_profile("host", 4) is None
    assert stored_profiles() == ()


def test_merging_joins_rows(path: Path) -> None:
    one = msgspec.structs.replace(measured(peak=1e13), gemm=load_profile("v100").gemm)
    store_profile(one, 4)
    kept = store_profile(measured(peak=3e13), 4, merge=merge_profiles)
    assert kept.gemm == one.gemm
    assert kept.device.peak("float32") == 3e13
    assert stored_profile("host", 4) == kept


@pytest.mark.parametrize(
    "content", [b"not a database at all" * 50, b"SQLite format 3\0" + b"\1" * 80]
)
def test_a_broken_file_is_one_error(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    for call in (lambda: stored_profile("host", 4), lambda: store_profile(measured(), 4)):
        with pytest.raises(ProfileError, match=r"no usable database.*delete the file"):
            call()
    assert path.read_bytes() == content


def test_a_truncated_file_is_one_error(path: Path) -> None:
    store_profile(msgspec.structs.replace(measured(peak=1e14), gemm=load_profile("h100").gemm), 4)
    path.write_bytes(path.read_bytes()[:6000])
    with pytest.raises(ProfileError, match="no usable database"):
        stored_profile("host", 4)


def test_an_empty_file_is_one_error(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ProfileError, match=r"is empty, expected measurements; delete the file"):
        stored_profile("host", 4)
    store_profile(measured(), 4)
    assert stored_profile("host", 4) == measured()


def test_a_file_of_another_version_is_one_error(path: Path) -> None:
    store_profile(measured(), 4)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(ProfileError, match=r"version 7, expected 2; delete the file"):
        parse_cluster("4xhost")


@pytest.mark.parametrize(
    "change",
    ["UPDATE profiles SET profile = replace(profile, '16000000000', '16000000001')",
     "UPDATE samples SET median_s = median_s * 1.01", "UPDATE samples SET op = 'sort'",
     "DELETE FROM samples", "UPDATE profiles SET machine = machine || ' '",
     "UPDATE profiles SET digest = 'x'", "UPDATE profiles SET profile = x'ff'"],
)  # fmt: skip
def test_what_was_changed_since_it_was_measured_is_one_error(path: Path, change: str) -> None:
    store_profile(measured(), 4, (SAMPLE,))
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    connection.close()
    for call in (
        lambda: stored_profile("host", 4), stored_profiles, lambda: stored_samples("host", 4),
        lambda: store_profile(measured(), 4, merge=merge_profiles),
    ):  # fmt: skip
        with pytest.raises(ProfileError, match=r"profile 'host' of 4 devices: is damaged"):
            call()
    store_profile(measured(), 4, (SAMPLE,))  # measured anew
    assert stored_profile("host", 4) == measured()
    assert stored_samples("host", 4) == (SAMPLE,)


OLDER = """
CREATE TABLE profiles (
  name TEXT NOT NULL, devices INTEGER NOT NULL, machine TEXT NOT NULL, profile TEXT NOT NULL,
  PRIMARY KEY (name, devices));
INSERT INTO profiles SELECT name, devices, machine, profile FROM kept;
DROP TABLE kept;
PRAGMA user_version = 1;
"""


def test_a_file_without_digests_is_read_and_gets_them(path: Path) -> None:
    store_profile(measured(), 4, (SAMPLE,))
    with sqlite3.connect(path) as connection:
        connection.executescript(f"ALTER TABLE profiles RENAME TO kept; {OLDER}")
    connection.close()
    assert stored_profile("host", 4) == measured()
    assert stored_samples("host", 4) == (SAMPLE,)
    store_profile(measured(), 8)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE samples SET median_s = 1.0")
    connection.close()
    assert stored_profile("host", 8) == measured()
    with pytest.raises(ProfileError, match="is damaged"):
        stored_profile("host", 4)


def test_a_folder_that_cannot_be_written_is_one_error(path: Path) -> None:
    path.parent.parent.mkdir(exist_ok=True)
    path.parent.write_text("a file where the folder should be")
    with pytest.raises(ProfileError, match=r"cannot be made.*XDG_CACHE_HOME"):
        store_profile(measured(), 4)
    assert stored_profile("host", 4) is None


def test_a_read_only_file_is_one_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_profile(measured(), 4)
    real = sqlite3.connect

    def read_only(target: str, **options: object) -> sqlite3.Connection:
        return real(target.replace("mode=rwc", "mode=ro"), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(ProfileError, match="readonly"):
        store_profile(measured(peak=2e10), 4)
    assert stored_profile("host", 4) == measured()


def test_a_locked_file_is_one_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.1)
    store_profile(measured(), 4)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(ProfileError, match="is locked by another process"):
            store_profile(measured(), 4)
    finally:
        holder.close()
    store_profile(measured(), 4)


def test_two_processes_do_not_measure_at_once(path: Path) -> None:
    program = (
        "import sys; from profiles import measuring\n"
        "with measuring():\n  print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(ProfileError, match="another process is measuring"),
            measuring(wait_s=0.1),
        ):
            pass
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()
    with measuring(wait_s=5.0):  # the lock went with the process
        pass
