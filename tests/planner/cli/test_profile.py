from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import planner.cli.profile as command
from profiles import ProfileError, database_path, load_profile, save_profile
from profiles import measure as door  # pyright: ignore[reportAttributeAccessIssue]
from profiles.measure_cases import Case, collective_cases, local_cases, passing_cases
from tests.planner.cli.runner import Run


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A product, copies, a transpose and a gather, all small, in a cache of their own."""
    cases = [*local_cases(True)]
    some = [*cases[:1], next(c for c in cases if c.op == "copy")]

    def local(quick: bool, *, accelerator: bool = False) -> list[Case]:
        return some

    def shared(count: int, quick: bool) -> list[Case]:
        return [*collective_cases(count, True)][:1]

    monkeypatch.setattr(door, "local_cases", local)
    monkeypatch.setattr(door, "collective_cases", shared)

    def passing() -> list[Case]:
        return [replace(c, passes=4) for c in [*passing_cases()][:2]]

    monkeypatch.setattr(door, "passing_cases", passing)
    monkeypatch.setattr(door, "FRESH_BYTES", 1 << 20)
    monkeypatch.setattr(door, "RUN_S", 1e-4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_measures_exports_and_merges(run: Run, tmp_path: Path) -> None:
    done = run("profile", "--quick", "--devices", "1", "--devices", "2", "--export", "two.json",
               "--json")  # fmt: skip
    assert done.status == 0
    data = json.loads(done.out)
    assert [p["devices"] for p in data["profiles"]] == [1, 2]
    assert all(s["low_s"] <= s["median_s"] <= s["high_s"] for s in data["profiles"][1]["samples"])
    assert load_profile(tmp_path / "two.json").device.evidence == "measured"
    listed = json.loads(run("clusters", "--json").out)["clusters"]
    assert sum(c["name"] == "host" and c["evidence"] == "measured" for c in listed) == 2
    merged = run("profile", "--merge", tmp_path / "two.json")
    assert merged.status == 0
    assert "at once" in merged.out


def test_wrong_use_is_one_error(run: Run, tmp_path: Path) -> None:
    assert "found 8 devices, expected 99" in run("profile", "--devices", "99").err
    save_profile(load_profile("host"), tmp_path / "assumed.json")
    assert "expected measured ones" in run("profile", "--merge", "assumed.json").err
    save_profile(load_profile("h100"), tmp_path / "h100.json")
    assert "whose figures are shipped" in run("profile", "--merge", "h100.json").err
    raw = json.loads((tmp_path / "assumed.json").read_text())
    raw["device"]["memory_bandwidth_bytes_per_s"] = 10.0  # GB/s written for bytes/s
    (tmp_path / "units.json").write_text(json.dumps(raw))
    failed = run("profile", "--merge", "units.json", "--json")
    error = json.loads(failed.out)["error"]
    assert failed.status == 2
    assert "memory_bandwidth_bytes_per_s" in error["where"]
    assert "units are bytes, seconds" in error["remedy"]


def test_no_clusters_name_is_one_error(run: Run, tmp_path: Path) -> None:
    host = load_profile("host")
    device = msgspec.structs.replace(host.device, name="My GPU!", evidence="measured")
    named = msgspec.structs.replace(host, name="My GPU!", aliases=(), device=device)
    save_profile(named, tmp_path / "odd.json")
    assert "which no name of a cluster can say" in run("profile", "--merge", "odd.json").err


def test_deep_nesting_is_one_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "deep.yaml").write_text("[" * 5_000)
    assert "is not JSON" in run("profile", "--merge", "deep.json").err
    done = run("plan", "step.py:sgd", "-c", "deep.yaml", "-o", "p.json")
    assert done.status == 2
    assert "is neither YAML nor JSON" in done.err


def test_what_cannot_be_kept_is_said_before_and_not_lost_after(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = database_path()
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"not a database" * 99)
    timed: list[int] = []

    def measured(*args: object, **settings: object) -> None:
        timed.append(1)

    with monkeypatch.context() as patched:
        patched.setattr(command, "measure", measured)
        assert "no usable database" in run("profile", "--quick", "--devices", "1").err
    assert not timed
    kept.unlink()

    def full(*args: object) -> None:
        raise ProfileError("database or disk is full", where=str(kept))

    with monkeypatch.context() as patched:
        patched.setattr(command, "store_profile", full)
        failed = run("profile", "--quick", "--devices", "1")
    assert failed.status == 2
    assert "what was measured is in" in failed.err
    assert "disk is full" in failed.err
    assert run("profile", "--merge", "host-1.profile.json").status == 0


def test_clusters_are_listed_without_measurements_that_cannot_be_read(run: Run) -> None:
    kept = database_path()
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"not a database" * 99)
    done = run("clusters", "--json")
    data = json.loads(done.out)
    assert done.status == 0
    assert "h100" in {c["name"] for c in data["clusters"]}
    assert "no usable database" in data["warnings"][0]
    assert "no usable database" in run("clusters").out


def test_an_export_that_cannot_be_written_leaves_nothing(run: Run, tmp_path: Path) -> None:
    done = run("profile", "--quick", "--devices", "1", "--export", "gone/host.json")
    assert done.status == 2
    assert "cannot be written" in done.err
    assert not [p for p in tmp_path.rglob("*") if "host.json" in p.name]


def test_a_plan_says_that_it_was_priced_by_measurements(run: Run, tmp_path: Path) -> None:
    assert run("profile", "--quick", "--devices", "2").status == 0
    assert run("plan", "step.py:sgd", "-c", "2xhost", "-o", "p.json", "--no-baselines").status == 0
    (program,) = json.loads((tmp_path / "p.json").read_text())["programs"]
    cluster = program["cluster"]
    assert cluster["device"]["evidence"] == "measured"
    assert msgspec.json.encode(cluster["gemm"]["rows"])
