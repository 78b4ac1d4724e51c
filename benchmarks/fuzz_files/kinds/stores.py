# pyright: basic
"""The plan store, and the journals of searches for rules."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from planner.common.store.database import Store
from planner.common.store.keys import Memory
from planner.files.plan_file import decoded, encoded, one_stage
from planner.files.program_plan import ProgramPlan
from planner.sharding.search.stored_plans import stored_plan
from planner.solver.cached import _Solution as Solution
from substitutions.generate.journal import Decision, Journal

from ..kind import ACCEPTED, EQUAL, Files, Kind, expect
from ..tables import changed as tables_changed
from .plans import NAME, saved_plans

CHECKED = 0.1  # share of the plans that are held against their program
BASE, LOG = "plans.sqlite3", "plans.sqlite3-wal"
SOLUTION = Solution((1, 0, 2), 1.5, 1.25, "GAP", 100.0)


@cache
def _files() -> tuple[ProgramPlan, ...]:
    """Plans of one program under other options, and of others."""
    found = [decoded(seed[NAME], "seed").programs[0] for seed in saved_plans()]
    slower = msgspec.structs.replace(found[0], warnings=("another machine",))
    return (slower, *found)


def _bytes(program: ProgramPlan) -> bytes:
    return encoded(one_stage(program, 0))


def _key(number: int) -> str:
    return f"{number:064x}"


@cache
def _stored(*, logged: bool) -> Files:
    """A store as a process leaves it that ends, or that is killed (`logged`)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / BASE
        memory = Memory(Store(path))
        memory.put("solution", _key(0), SOLUTION)
        with contextlib.closing(sqlite3.connect(path)) as held:
            held.execute("SELECT count(*) FROM entries").fetchone()  # so that the log stays
            for number, file in enumerate(_files()):
                memory.put("plan", _key(number), file)
            if not logged:
                held.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            copy = Path(folder) / "copy"
            copy.mkdir()
            for name in (BASE, LOG):
                shutil.copy(path.with_name(name), copy / name)
        found = {name: (copy / name).read_bytes() for name in (BASE, LOG)}
    return found if logged else {BASE: found[BASE]}


def _cells(rng: Random, files: Files) -> tuple[str, Files]:
    if LOG in files:
        files = _stored(logged=False)
    how, data = tables_changed(rng, files[BASE])
    return how, {BASE: data}


def _use_store(folder: Path, seed: Files, rng: Random) -> str:
    """What is found is what was kept, byte for byte, or nothing; and it goes on working."""
    store = Store(folder / BASE)
    memory, lost = Memory(store), 0
    for number, file in enumerate(_files()):
        found = memory.get("plan", _key(number), ProgramPlan)
        expect(found is None or _bytes(found) == _bytes(file), "another plan")
        lost += found is None
        if rng.random() < CHECKED:
            sound = stored_plan(memory, _key(number), file.graph, file.traced_digest)
            expect(sound is None or _bytes(sound) == _bytes(file), "another plan")
    solution = memory.get("solution", _key(0), Solution)
    expect(solution in (None, SOLUTION), "another solution")
    lost += solution is None
    memory.put("plan", _key(99), _files()[0])
    held = memory.get("plan", _key(99), ProgramPlan)
    if memory.store is not None and held is not None:
        expect(_bytes(held) == _bytes(_files()[0]), "another plan than was just kept")
    if rng.random() < 0.5:
        store.info()
        store.clear()
        memory = Memory(store)
        memory.put("plan", _key(0), _files()[0])
        if memory.store is not None:
            again = memory.get("plan", _key(0), ProgramPlan)
            expect(again is not None and _bytes(again) == _bytes(_files()[0]), "a lost plan")
    return ACCEPTED if lost else EQUAL


# --- journals ----------------------------------------------------------------------------------

HEAD, JOURNAL = "a search", "rules.journal"
DECISIONS = {
    f"(add ?x{n} ?y)=>(add ?y ?x{n})": Decision(decision, verdict, condition, ways)
    for n, (decision, verdict, condition, ways) in enumerate((
        ("kept", "proved", "", "><"), ("rejected", "false", "", ""), ("implied", "proved", "", ">"),
        ("kept", "proved-with-condition", "k divides n", "<"), ("rejected", "unknown", "", ""),
    ))
}  # fmt: skip


@cache
def _journal() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / JOURNAL
        journal = Journal(path, HEAD)
        for key, decision in DECISIONS.items():
            journal.add(key, decision)
        return {JOURNAL: path.read_bytes()}


def _use_journal(folder: Path, seed: Files, rng: Random) -> str:
    found = Journal(folder / JOURNAL, HEAD).known
    for key, decision in found.items():
        expect(DECISIONS.get(key) == decision, f"{decision} of {key}")
    again = Journal(folder / JOURNAL, HEAD)
    expect(again.known == found, "a journal is not read as it was written")
    again.add("key", Decision("kept", "proved", "", ">"))
    expect("key" in Journal(folder / JOURNAL, HEAD).known, "a decision is lost")
    return EQUAL if found == DECISIONS else ACCEPTED


def kinds(*, quick: bool) -> list[Kind]:
    stores: tuple[Any, ...] = (_stored(logged=False), _stored(logged=True))
    return [
        Kind("plan store", stores, _use_store, (_cells,), 3.0, ("cache", "info")),
        Kind("journal", (_journal(),), _use_journal, (), 0.5),
    ]
