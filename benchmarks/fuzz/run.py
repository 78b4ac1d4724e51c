# pyright: basic
"""Runs many cases in processes of their own, counts the outcomes, and keeps what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from .case import BAD, QUICK, Outcome
from .program import encoded
from .worker import Row

MOST = 400  # cases of one process: what JAX keeps of them would fill the memory
PATIENCE_S = 300.0  # with one case, idle; devices that wait for each other wait for ever
FLAGS = "--xla_force_host_platform_device_count=8"
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Totals:
    """Counts of a run."""

    verdicts: Counter[str] = field(default_factory=Counter[str])
    primitives: Counter[str] = field(default_factory=Counter[str])
    emissions: Counter[str] = field(default_factory=Counter[str])
    routes: Counter[str] = field(default_factory=Counter[str])
    meshes: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    bad: list[Row] = field(default_factory=list[Row])
    seconds: float = 0.0

    @property
    def programs(self) -> int:
        return sum(self.verdicts.values())

    def add(self, row: Row) -> None:
        outcome = row.outcome
        assert outcome is not None
        self.verdicts[outcome.verdict] += 1
        self.seconds += row.seconds
        if outcome.verdict == "refused":
            self.refused[outcome.reason.partition(":")[0]] += 1
        if outcome.is_bad:
            self.bad.append(row)
        if outcome.verdict not in ("no program", "no choice", "refused"):
            self.primitives.update(outcome.primitives)
            self.emissions[row.emission] += 1
            self.routes[row.route] += 1
            self.meshes[row.mesh] += 1


def run_many(
    work: str, seed: int, numbers: range, seconds: float, jobs: int, keep: Path | None,
    each: Callable[[Row], None] = lambda _: None, patience_s: float = PATIENCE_S,
) -> Totals:  # fmt: skip
    """Runs cases in `jobs` processes.

    Args:
        work: a sort of `worker.WORK`.
        seed: of all.
        numbers: of the cases.
        seconds: after which no further case is begun.
        jobs: processes.
        keep: folder for what goes wrong, cut down.
        each: hears of each case.
        patience_s: for one case, after which its process is ended.
    """
    totals, lock = Totals(), threading.Lock()
    until = time.monotonic() + seconds

    def run(part: range) -> None:
        for row in _rows(work, seed, part, until, patience_s, shrink=keep is not None):
            with lock:
                totals.add(row)
                if keep is not None and row.case is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{seed}-{row.number}.json").write_text(encoded(row.case) + "\n")
                each(row)

    threads = [threading.Thread(target=run, args=(numbers[k::jobs],)) for k in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return totals


def _rows(
    work: str, seed: int, numbers: range, until: float, patience_s: float, *, shrink: bool
) -> Iterator[Row]:
    """Rows of these numbers; what a case does to its process ends with that process."""
    while len(numbers) and time.monotonic() < until:
        last, since, part = None, time.monotonic(), numbers[:MOST]
        with tempfile.TemporaryFile() as errors:
            left = until - time.monotonic()
            for row in _process(work, seed, part, left, patience_s, errors, shrink=shrink):
                last, since = row, time.monotonic()
                if not row.begun:
                    yield row
            errors.seek(0)
            reason = errors.read().decode(errors="replace").strip()[-600:]
        if last is None:
            raise RuntimeError(f"a process of random {work} ended before it began: {reason}")
        if last.begun:
            is_late = time.monotonic() - since >= patience_s
            outcome = Outcome("crashed", f"no answer in {patience_s:g} s" if is_late else reason)
            if work == "programs" and not _runs_on_one_device(seed, last.number):
                outcome = Outcome("no program", "XLA ends the process on one device too")
            yield msgspec.structs.replace(last, begun=False, outcome=outcome)
        numbers = numbers[numbers.index(last.number) + 1 :]


def _runs_on_one_device(seed: int, number: int) -> bool:
    """Whether the program of a case can be drawn, and be run unsharded."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "benchmarks.fuzz.worker", "unsharded", str(seed), str(number)]
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=PATIENCE_S, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return ran.returncode >= 0


def _process(
    work: str, seed: int, numbers: range, seconds: float, patience_s: float, errors: IO[bytes], *,
    shrink: bool,
) -> Iterator[Row]:  # fmt: skip
    """Rows of one process, which writes its last words to `errors`."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
    if work != "programs":  # which say so at each compilation
        flags += "".join(f" --{name}={str(value).lower()}" for name, value in QUICK.items())
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    bounds: list[Any] = [work, seed, numbers.start, numbers.stop, numbers.step, seconds]
    command = [sys.executable, "-m", "benchmarks.fuzz.worker", *map(str, bounds)]
    with subprocess.Popen(
        command + ["shrink"] * shrink, cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=errors,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while True:
            patience = threading.Timer(patience_s, process.kill)
            patience.start()
            line = process.stdout.readline()
            patience.cancel()
            if not line:
                return
            if line.startswith("{"):
                yield msgspec.json.decode(line, type=Row)


def table(work: str, totals: Totals, wall_s: float) -> str:
    """The counts as text."""
    rate = totals.programs / wall_s * 60 if wall_s else 0.0
    wrong = sum(totals.verdicts[verdict] for verdict in BAD)
    head = (
        f"{totals.programs} {work} in {wall_s:.0f} s ({rate:.0f} a minute), {wrong} wrong; "
        f"{_shown(totals.verdicts)}"
    )
    if work != "programs":
        return head
    rows = [
        f"emissions: {_shown(totals.emissions)}",
        f"made by: {_shown(totals.routes)}",
        f"meshes: {_shown(totals.meshes)}",
        f"refused: {_shown(totals.refused) or 'none'}",
        f"{len(totals.primitives)} primitives: {_shown(totals.primitives)}",
    ]
    return "\n".join([head, *rows])


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
