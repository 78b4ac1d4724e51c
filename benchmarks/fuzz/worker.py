# pyright: basic
"""Runs the cases of one process and writes a line of JSON for each: `python -m` this file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import msgspec
import pytest

from planner.sharding.search import context
from tests.planner.pipeline.unproved import without_proof

from .auto_pipelines import tried_in_stages
from .case import Case, Outcome, padded_case, random_case, run, unsharded
from .rewrites import rewrites
from .shrink import shrunk
from .training import tried


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


def program(seed: int, number: int, shrink: bool) -> Row:
    """Draws a case, runs it, and cuts it down if it goes wrong."""
    return _program(random_case(seed, number), number, shrink)


def padded(seed: int, number: int, shrink: bool) -> Row:
    """The same of a case with padded dimensions."""
    return _program(padded_case(seed, number), number, shrink)


def _program(case: Case, number: int, shrink: bool) -> Row:
    start = time.monotonic()
    outcome = run(case)
    seconds = time.monotonic() - start
    small = None
    if outcome.is_bad:
        small, found = shrunk(case) if shrink else (case, outcome)
        outcome = msgspec.structs.replace(found, primitives=outcome.primitives)
    mesh = "x".join(map(str, case.mesh))
    return Row(number, False, mesh, case.emission, case.route, outcome, small, seconds)


def training(seed: int, number: int, shrink: bool) -> Row:
    """A random training step, in parts and as it is."""
    del shrink
    start = time.monotonic()
    found = tried(seed * FAR + number)
    verdict = "wrong" if found.wrong else "refused" if found.refused else "right"
    outcome = Outcome(verdict, found.wrong or found.refused)
    return Row(number, outcome=outcome, seconds=time.monotonic() - start)


def pipelines(seed: int, number: int, shrink: bool) -> Row:
    """A random training step planned with pipeline="auto", against the step without a plan."""
    del shrink
    return _in_stages(seed, number)


def estimated(seed: int, number: int, shrink: bool) -> Row:
    """The same, with plans chosen by estimates and little search: a third of the time or less."""
    del shrink
    with without_proof(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "MOST_WORK", LITTLE_WORK)
        return _in_stages(seed, number)


def _in_stages(seed: int, number: int) -> Row:
    start = time.monotonic()
    found = tried_in_stages(seed * FAR + number)
    verdict = "wrong" if found.wrong else "refused" if found.refused else "right"
    form = found.what.partition(":")[0]
    outcome = Outcome(verdict, found.wrong or found.refused)
    return Row(number, route=form, outcome=outcome, seconds=time.monotonic() - start)


def rules(seed: int, number: int, shrink: bool) -> Row:
    """Every row of the catalogue at a place in a random program."""
    del shrink
    start = time.monotonic()
    found = rewrites(seed * FAR + number)
    outcome = Outcome(
        "wrong" if found.wrong else "right", "; ".join(found.wrong), dict(found.places)
    )
    return Row(number, outcome=outcome, seconds=time.monotonic() - start)


LITTLE_WORK = 1e8  # of all solves of a program, `context.MOST_WORK` otherwise
FAR = 1_000_000  # seeds of different runs share no case
WORK: Mapping[str, Callable[[int, int, bool], Row]] = {
    "estimated": estimated, "padded": padded, "pipelines": pipelines, "programs": program,
    "rewrites": rules, "training": training,
}  # fmt: skip


def main(arguments: list[str]) -> None:
    """Work of one sort: numbers first to last by a step, until the time is over."""
    if arguments[0] == "unsharded":
        unsharded(*map(int, arguments[1:3]))
        return
    work, shrink = WORK[arguments[0]], "shrink" in arguments
    seed, first, last, stride = map(int, arguments[1:5])
    until = time.monotonic() + float(arguments[5])
    for number in range(first, last, stride):
        if time.monotonic() > until:
            return
        say(Row(number, begun=True))
        say(work(seed, number, shrink))


if __name__ == "__main__":
    main(sys.argv[1:])
