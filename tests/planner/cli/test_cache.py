"""The plan store on the command line."""

from __future__ import annotations

from pathlib import Path

from planner.common.store.database import store_path
from tests.planner.cli.runner import Run

PLAN = ("plan", "step.py:sgd", "-c", "8xh100", "--no-baselines")


def test_a_second_run_gets_the_same_bytes_from_the_store(run: Run, tmp_path: Path) -> None:
    first = run(*PLAN, "-o", "a.json", "--json").answer
    second = run(*PLAN, "-o", "b.json", "--json").answer
    assert (first["cached"], second["cached"]) == (False, True)
    assert second["seconds"]["solve"] == 0.0
    assert first.keys() == second.keys()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert "taken from the plan store" in run(*PLAN).out


def test_no_cache_neither_looks_nor_keeps(run: Run) -> None:
    assert run(*PLAN, "--no-cache", "--json").answer["cached"] is False
    assert not store_path().exists()
    run(*PLAN)
    assert run(*PLAN, "--no-cache", "--json").answer["cached"] is False


def test_a_changed_file_is_planned_anew(run: Run, tmp_path: Path) -> None:
    run(*PLAN)
    source = (tmp_path / "step.py").read_text(encoding="utf-8")
    (tmp_path / "changed.py").write_text(source.replace("0.1 * g", "0.2 * g"), encoding="utf-8")
    changed = ("plan", "changed.py:sgd", *PLAN[2:], "--json")
    assert run(*changed).answer["cached"] is False
    assert run(*changed).answer["cached"] is True


def test_a_store_that_cannot_be_used_is_one_line(run: Run) -> None:
    store_path().parent.mkdir(parents=True)
    store_path().write_bytes(b"no database " * 100)
    done = run(*PLAN, "--json")
    assert done.status == 0
    assert done.answer["cached"] is False
    (line,) = done.err.splitlines()
    assert line.startswith(f"note: planning without the plan store: {store_path()}: ")
    assert "meshwright cache clear" in line
    failed = run("cache", "info", "--json")
    assert failed.status == 2
    assert failed.error["where"] == str(store_path())
    assert run("cache", "clear").status == 0
    done = run(*PLAN)
    assert done.status == 0
    assert done.err == ""


def test_info_and_clear(run: Run) -> None:
    empty = run("cache", "info", "--json").answer
    assert empty["entries"] == {}
    assert empty["path"] == str(store_path())
    assert not store_path().exists()
    run(*PLAN)
    held = run("cache", "info", "--json").answer
    assert held["entries"]["plan"] == 1
    assert 0 < sum(held["bytes"].values()) <= held["limit_bytes"]
    shown = run("cache", "info").out
    assert str(store_path()) in shown
    assert "plans" in shown
    assert run("cache", "clear", "--json").answer["entries"] == {}
    assert run(*PLAN, "--json").answer["cached"] is False
