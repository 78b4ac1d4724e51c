"""Changed files of every kind that is read: an error of ours, or what they say makes sense.

`python -m benchmarks fuzz-files [--count=N] [--seed=S] [--minutes=M] [--only=KIND,...]
[--keep=FOLDER]`. Byte by byte and value by value, plans, pipelines, profiles, databases, clusters,
rules, journals, layer profiles, contest instances and schedules are damaged and read. Whatever is
not refused by an error of this project has to be what the sound file says, or, where that is for
the user to say, something that can be used.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .every import every
from .run import Failure, Tally, run

COUNT, QUICK = 100_000, 2_000
SHOWN = 30


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Tries mutants and prints a table of outcomes."""
    count = int(_option("count") or (QUICK if quick else COUNT))
    seed, minutes = int(_option("seed") or 0), float(_option("minutes") or "inf")
    only = (_option("only") or "").split(",")
    kinds = [k for k in every(quick=False) if only == [""] or k.name in only]
    tally = Tally()
    for tally in run(kinds, count, seed, minutes):
        if sys.stderr.isatty() and tally.count % 100 == 0:
            print(f"\r{tally.count} of {count}", end="", file=sys.stderr, flush=True)
    folder = _option("keep")
    for failure in tally.failures:
        if folder:
            _keep(Path(folder), failure)
    for failure in tally.failures[:SHOWN]:
        print(f"\n{failure.kind}, mutant {failure.number}, {failure.how}\n{failure.error}")
    print(_table(tally))
    return [
        {"kind": kind, "outcomes": dict(found), "seconds": round(tally.seconds[kind], 2),
         "slowest_s": round(tally.slowest[kind], 3)}
        for kind, found in tally.outcomes.items()
    ]  # fmt: skip


def _option(name: str) -> str | None:
    """The value of --NAME=VALUE or --NAME VALUE."""
    for n, argument in enumerate(sys.argv):
        if argument == f"--{name}" and n + 1 < len(sys.argv):
            return sys.argv[n + 1]
        if argument.startswith(f"--{name}="):
            return argument.partition("=")[2]
    return None


def _keep(folder: Path, failure: Failure) -> None:
    place = folder / f"{failure.kind.replace(' ', '-')}-{failure.number}"
    place.mkdir(parents=True, exist_ok=True)
    for name, data in failure.files.items():
        (place / name).write_bytes(data)
    text = f"{failure.how}\n{failure.error}"
    (place / "ERROR").write_text(text, encoding="utf-8", errors="backslashreplace")


def _table(tally: Tally) -> str:
    names = sorted({name for found in tally.outcomes.values() for name in found})
    head = f"| kind | mutants | {' | '.join(names)} | CPU s | slowest s |"
    rows = [head, "|---" * (len(names) + 4) + "|"]
    for kind, found in sorted(tally.outcomes.items()):
        cells = [kind, str(found.total()), *(str(found[name]) for name in names)]
        cells += [f"{tally.seconds[kind]:.1f}", f"{tally.slowest[kind]:.2f}"]
        rows.append(f"| {' | '.join(cells)} |")
    rows.append(f"\n{tally.count} mutants, {len(tally.failures)} with an outcome that is wrong")
    return "\n".join(rows)
