# pyright: basic
"""The command: how many programs, from which seed, for how long."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from .run import PATIENCE_S, run_many, table
from .worker import WORK, Row

KEPT = Path("fuzz-found")


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Runs random programs and prints what became of them.

    Args:
        quick: a few hundred.
    """
    given = _options(sys.argv[1:])
    if not any(getattr(given, work) for work in WORK):
        given.programs = 300 if quick else 10_000
    wanted = {work: getattr(given, work) for work in WORK}
    until = time.monotonic() + (given.minutes * 60 if given.minutes else 1e9)
    return [_part(work, count, given, until) for work, count in wanted.items() if count]


def _part(work: str, count: int, given: argparse.Namespace, until: float) -> dict[str, Any]:
    """Runs so many cases of a sort and prints what became of them."""
    numbers = range(given.first, given.first + count)
    if given.only is not None:
        numbers = range(given.only, given.only + 1)
    start = time.monotonic()
    keep = Path(given.keep) if work == "programs" else None
    left, patience_s = until - start, given.patience
    totals = run_many(work, given.seed, numbers, left, given.jobs, keep, _say, patience_s)
    wall_s = time.monotonic() - start
    print(table(work, totals, wall_s), flush=True)
    return {
        "work": work, "seed": given.seed, "count": totals.programs, "seconds": wall_s,
        "jobs": given.jobs, "verdicts": dict(totals.verdicts), "refused": dict(totals.refused),
        "emissions": dict(totals.emissions), "meshes": dict(totals.meshes),
        "routes": dict(totals.routes), "primitives": dict(totals.primitives),
        "wrong": [row.number for row in totals.bad],
    }  # fmt: skip


def _say(row: Row) -> None:
    outcome = row.outcome
    if outcome is not None and outcome.is_bad:
        print(
            f"{row.number}: {outcome.verdict} on {row.mesh}, {row.emission}, {row.route}: "
            f"{outcome.reason}",
            flush=True,
        )


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fuzz")
    parser.add_argument("--programs", type=int, default=0, help="how many random programs")
    parser.add_argument("--training", type=int, default=0, help="how many random training steps")
    parser.add_argument("--pipelines", type=int, default=0, help='how many with pipeline="auto"')
    parser.add_argument("--estimated", type=int, default=0, help="the same without the proof")
    parser.add_argument(
        "--rewrites", type=int, default=0, help="how often each row of the catalogue is applied"
    )
    parser.add_argument(
        "--padded", type=int, default=0, help="how many with dimensions that are padded"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many")
    parser.add_argument("--only", type=int, help="the program of one number")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds for one case")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", default=str(KEPT), help="folder for what goes wrong, cut down")
    return parser.parse_known_args(arguments)[0]
