# pyright: basic
"""Runs the cases of one process and writes a line of JSON for each: `python -m` this file."""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec

from .case import Case, Outcome, random_case, run
from .shrink import shrunk


class Row(msgspec.Struct, frozen=True):
    """What became of one number; `begun` before it is run, for the case that it ends the process.

    case: that goes wrong, as small as was found.
    """

    number: int
    begun: bool = False
    mesh: str = ""
    emission: str = ""
    route: str = ""
    outcome: Outcome | None = None
    case: Case | None = None
    seconds: float = 0.0


def say(row: Row) -> None:
    print(msgspec.json.encode(row).decode(), flush=True)


def one(seed: int, number: int, *, shrink: bool) -> Row:
    """Draws a case, runs it, and cuts it down if it goes wrong."""
    start = time.monotonic()
    case = random_case(seed, number)
    outcome = run(case)
    seconds = time.monotonic() - start
    small = None
    if outcome.is_bad:
        small, found = shrunk(case) if shrink else (case, outcome)
        outcome = msgspec.structs.replace(found, primitives=outcome.primitives)
    mesh = "x".join(map(str, case.mesh))
    return Row(number, False, mesh, case.emission, case.route, outcome, small, seconds)


def main(arguments: list[str]) -> Any:
    """Numbers first to last by a step, until the time is over."""
    seed, first, last, stride = map(int, arguments[:4])
    until = time.monotonic() + float(arguments[4])
    for number in range(first, last, stride):
        if time.monotonic() > until:
            return
        say(Row(number, begun=True))
        say(one(seed, number, shrink="shrink" in arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
