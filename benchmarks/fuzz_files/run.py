"""Mutants, one after the other, each within a limit of time and memory."""

from __future__ import annotations

import faulthandler
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from ir import TraceError
from planner import PlanError
from profiles import ProfileError
from substitutions import RuleError

from .kind import Files, Kind, mutant
from .told import told

PROJECT = (PlanError, ProfileError, RuleError, TraceError)
REFUSED = "refused"
LONGEST = 5_000  # characters of a message
LIMIT_S, HANG_S = 10.0, 120.0  # of processor time; of time
TOLD = 0.02  # share of the mutants that the command line is asked about as well
MORE_BYTES = 4 << 30  # than the process has when it begins


class SlowError(Exception):
    """A mutant took too long."""


@dataclass(frozen=True)
class Failure:
    """A mutant whose outcome is none that is allowed."""

    kind: str
    number: int
    how: str
    error: str
    files: Files


@dataclass
class Tally:
    """Outcomes by kind, and what went wrong.

    seconds: of processor time, by kind.
    slowest: mutant of each kind, in seconds.
    """

    outcomes: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    failures: list[Failure] = field(default_factory=list[Failure])
    seconds: Counter[str] = field(default_factory=Counter[str])
    slowest: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def count(self) -> int:
        return sum(found.total() for found in self.outcomes.values())

    def add(self, kind: str, outcome: str, spent_s: float) -> None:
        self.outcomes.setdefault(kind, Counter())[outcome] += 1
        self.seconds[kind] += spent_s  # pyright: ignore[reportArgumentType]
        self.slowest[kind] = max(self.slowest.get(kind, 0.0), spent_s)


def run(
    kinds: Sequence[Kind], count: int, seed: int = 0, minutes: float = float("inf")
) -> Iterator[Tally]:
    """Tries mutants, and says after each of them how it stands.

    Args:
        kinds: of files.
        count: of mutants, divided by the shares of the kinds.
        seed: each mutant depends on it and on its number alone.
        minutes: after which to end.
    """
    tally, end = Tally(), time.monotonic() + 60.0 * minutes
    weights = [kind.share for kind in kinds]
    memory = Path("/dev/shm")  # databases wait for disks, which is not what is tried here
    here = memory if memory.is_dir() else None
    with _limited(), tempfile.TemporaryDirectory(prefix="meshwright-files-", dir=here) as top:
        for number in range(count):
            if time.monotonic() > end:
                return
            rng = Random(f"{seed} {number}")
            (kind,) = rng.choices(kinds, weights)
            folder = Path(top) / f"{number}"
            folder.mkdir()
            _try(kind, number, rng, folder, tally)
            shutil.rmtree(folder, ignore_errors=True)
            yield tally


def _try(kind: Kind, number: int, rng: Random, folder: Path, tally: Tally) -> None:
    seed, how, files = mutant(kind, rng)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    start, wrong = time.process_time(), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            try:
                if kind.command and rng.random() < TOLD:
                    told(kind, folder, seed)
                outcome = kind.use(folder, seed, rng)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0.0)
                faulthandler.cancel_dump_traceback_later()
    except PROJECT as error:
        outcome = REFUSED
        wrong = _unreadable(error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome, wrong = f"! {type(error).__name__}", traceback.format_exc()
    if wrong:
        outcome = outcome if outcome != REFUSED else "! unreadable message"
        tally.failures.append(Failure(kind.name, number, how, wrong, files))
    tally.add(kind.name, outcome, time.process_time() - start)


def _unreadable(error: ValueError) -> str:
    """What is wrong with a message: it is to be one line that a terminal can show."""
    text = str(error)
    if not text.strip() or len(text) > LONGEST:
        return f"a message of {len(text)} characters: {text[:300]}..."
    return ""


@contextmanager
def _limited() -> Generator[None]:
    """Limits of memory and of time, as long as mutants are tried."""

    def late(signum: int, frame: FrameType | None) -> None:
        raise SlowError(f"more than {LIMIT_S:g} s of processor time")

    old = signal.signal(signal.SIGPROF, late)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_held_bytes() + MORE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, old)


def _held_bytes() -> int:
    """Address space of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
