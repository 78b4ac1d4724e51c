# pyright: basic
"""Writers that are killed inside a write, run as a process of its own that prints what came of it.

A process that has no handler for SIGXFSZ is killed by the kernel inside the system call that would
make a file longer than it may be: at the very byte, and without a chance to clean up, as `kill -9`
does. Where nothing is written, at the moment of renaming, the process kills itself with SIGKILL.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from planner.common.store.database import Store
from planner.common.store.keys import Memory
from planner.files import plan_file as planfile
from planner.files.plan_file import PlanFile, one_stage
from planner.files.program_plan import ProgramPlan
from profiles import (
    Sample,
    load_profile,
    save_profile,
    store_profile,
    stored_profile,
    stored_samples,
)
from substitutions.generate.journal import Decision, Journal

OLD, NEW = "old", "new"
NOISE = Random(0).randbytes(60_000).hex()  # which no compression makes short
HOST = load_profile("host")
HEAD = "a search"


@dataclass(frozen=True)
class Writer:
    """Something that is written; `read` says which of two contents is there, whole."""

    write: Callable[[Path, str], object]
    read: Callable[[Path], str]


def plan_of(which: str) -> ProgramPlan:
    """A plan of no program, long enough to be cut anywhere."""
    plain: dict[str, Any] = {
        field.name: _empty(field.name) for field in msgspec.structs.fields(ProgramPlan)
    }
    return msgspec.convert(plain | {"name": which, "warnings": (NOISE,)}, ProgramPlan)


def file_of(which: str) -> PlanFile:
    """The same in a file."""
    return one_stage(plan_of(which), 0)


def _empty(name: str) -> Any:
    if name in ("cluster", "baselines", "compiler_options"):
        return {}
    if name == "mesh":
        return [("x", 1)]
    known = {"stop": "GAP", "emission": "shard_map", "loss_reduction": "auto", "microbatches": 1,
             "shardings": "warn", "overlap": True, "collective_matmul": True,
             "offload": "never"}  # fmt: skip
    texts = ("planner", "jax", "graph_digest", "graph", "origin", "schedule", "traced_digest")
    numbers = ("decided_ops", "sorted_blocks")
    if name in known:
        return known[name]
    if name in texts:
        return ""
    return 0 if name in numbers or name.endswith(("_s", "_bytes")) else ()


def _read_plan(folder: Path) -> str:
    found = planfile.read(folder / "plan.json")
    assert found == file_of(found.programs[0].name)
    return found.programs[0].name


def _profile(which: str) -> Any:
    link = msgspec.structs.replace(HOST.network, source=NOISE)
    return msgspec.structs.replace(HOST, name=which, aliases=(), network=link)


def _read_profile(folder: Path) -> str:
    found = load_profile(folder / "p.json")
    assert found == _profile(found.name)
    return found.name


SAMPLES = {
    which: tuple(Sample("product", which, f"{n}", 1.0, 1.0, 1.0, 5) for n in range(200))
    for which in (OLD, NEW)
}


def _stored(which: str) -> Any:
    return msgspec.structs.replace(
        _profile("host"), network=msgspec.structs.replace(HOST.network, source=f"{which} {NOISE}")
    )


def _read_database(folder: Path) -> str:
    path = folder / "profiles.sqlite3"
    found, samples = stored_profile("host", 4, path), stored_samples("host", 4, path)
    which = next(w for w in (OLD, NEW) if found == _stored(w))
    assert samples == SAMPLES[which]
    return which


def _write_store(folder: Path, which: str) -> None:
    memory = Memory(Store(folder / "plans.sqlite3"))
    memory.put("plan", "0" * 64, plan_of(which))
    assert memory.store is not None


def _read_store(folder: Path) -> str:
    memory = Memory(Store(folder / "plans.sqlite3"))
    found = memory.get("plan", "0" * 64, ProgramPlan)
    assert found is not None
    assert found == plan_of(found.name)
    return found.name


DECISIONS = {f"rule {n}": Decision("kept", "proved", NOISE[: 997 * n], ">") for n in range(9)}


def _write_journal(folder: Path, which: str) -> None:
    path = folder / "j"
    if which == OLD:
        path.write_text(HEAD + "\n", encoding="utf-8")
    journal = Journal(path if which == OLD else None, HEAD)
    journal.path = path
    for n, (key, found) in enumerate(DECISIONS.items()):
        if (n < 5) == (which == OLD):
            journal.add(key, found)


def _read_journal(folder: Path) -> str:
    """All lines that were written whole are there."""
    known = Journal(folder / "j", HEAD).known
    assert list(known.items()) == list(DECISIONS.items())[: len(known)]
    assert len(known) >= 5
    return NEW if len(known) == len(DECISIONS) else OLD


WRITERS = {
    "plan": Writer(lambda f, w: planfile.write(f / "plan.json", file_of(w)), _read_plan),
    "profile": Writer(lambda f, w: save_profile(_profile(w), f / "p.json"), _read_profile),
    "profile database": Writer(
        lambda f, w: store_profile(_stored(w), 4, SAMPLES[w], f / "profiles.sqlite3"),
        _read_database,
    ),
    "plan store": Writer(_write_store, _read_store),
    "plan store, read": Writer(_write_store, _read_store),  # what was logged goes into the file
    "journal": Writer(_write_journal, _read_journal),
}


# --- killing -----------------------------------------------------------------------------------


def killed(work: Callable[[], object], prepare: Callable[[], object]) -> int:
    """Does some work in a fork of this process; the signal that ended it, 0 for none."""
    child = os.fork()
    if not child:
        code = 1
        with suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            prepare()
            work()
            code = 0
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the work failed"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def at_byte(limit: int) -> Callable[[], None]:
    """The process dies in the write that makes a file longer than so many bytes."""

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    return prepare


def at_rename(*, after: bool) -> Callable[[], None]:
    """The process dies just before or just after it renames a file."""

    def prepare() -> None:
        rename = os.replace

        def dying(*args: Any, **more: Any) -> None:
            if after:
                rename(*args, **more)
            os.kill(os.getpid(), signal.SIGKILL)

        os.replace = dying

    return prepare


@contextmanager
def prepared(name: str) -> Iterator[Path]:
    """A folder that holds the old content; of a store that is read, logged and not yet in place."""
    writer = WRITERS[name]
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        writer.write(folder, OLD)
        if name.endswith("read"):
            assert killed(lambda: _logged(folder), lambda: None) == signal.SIGKILL
        yield folder


def _logged(folder: Path) -> None:
    """Leaves the new content in the log of a store: its last reader is gone without a word."""
    reader = sqlite3.connect(folder / "plans.sqlite3", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchone()
    _write_store(folder, NEW)
    os.kill(os.getpid(), signal.SIGKILL)


def tried(name: str, prepare: Callable[[], None]) -> dict[str, Any]:
    """What is there after a writer was killed, and after another one wrote."""
    writer = WRITERS[name]
    reads = name.endswith("read")
    with prepared(name) as folder:
        before = set(folder.iterdir())
        ended = killed(lambda: writer.read(folder) if reads else writer.write(folder, NEW), prepare)
        torn = sorted(p.name for p in set(folder.iterdir()) - before)
        found = writer.read(folder)
        writer.write(folder, NEW)
        again = writer.read(folder)
    return {"signal": ended, "left": torn, "found": found, "again": again}


def main() -> None:
    """Prints, for each writer, what came of being killed at many places."""
    steps = int(sys.argv[1])
    answer: dict[str, Any] = {}
    for name in WRITERS:
        with prepared(name) as folder:
            if not name.endswith("read"):
                WRITERS[name].write(folder, NEW)
            longest = max(path.stat().st_size for path in folder.iterdir())
        rows = [tried(name, at_byte(longest * n // steps)) for n in range(steps + 2)]
        if name in ("plan", "profile"):
            rows += [tried(name, at_rename(after=after)) for after in (False, True)]
        answer[name] = rows
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
