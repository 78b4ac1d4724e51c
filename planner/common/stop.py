"""Why a search ended."""

from __future__ import annotations

import enum
from collections.abc import Collection

PROVED = 1e-3  # relative: the gap up to which a plan counts as proved optimal
# Notes of plans whose lower bound is not one of the whole search space.
PART = "recompute: the lower bound is that of the choices that were planned, not of all"
PART_STATES = "offload: the lower bound is that of the choices of arrays that were planned"
REWRITTEN = "rewrites: the lower bound is of the program as it is rewritten, not of other rewrites"
AS_MANY = "micro-batches: the lower bound of one program is of as many micro-batches as it has"
NO_STAGES = (
    "pipeline: not searched, as all devices are one island and one program fits; the lower bound "
    "is of plans in one program (pipeline=2 plans stages)"
)
OF_BOUNDS = frozenset({PART, PART_STATES, REWRITTEN, AS_MANY, NO_STAGES})
ASKED = "the lower bound is that of pipelines as asked for: "  # then which settings
_COVERED = {
    PART: "of recomputation",
    PART_STATES: "of arrays on the host",
}


class Stop(enum.Enum):
    """The value is the sentence shown to the user."""

    OPTIMAL = "proved optimal"
    GAP = "best found; the gap to the lower bound is not closed"
    TIME_LIMIT = "time limit reached; best plan so far returned; raise the time limit to go on"
    INTERRUPTED = "interrupted; best found so far returned"
    INFEASIBLE = "nothing fits; add devices, raise the memory limit or shrink the batch"


def covered_text(notes: Collection[str]) -> str:
    """Which plans a lower bound is of, as words after "plan"; empty if it is of all.

    Args:
        notes: of the plan that has the bound.
    """
    of = " and ".join(text for note, text in _COVERED.items() if note in notes)
    parts = ["of the rewritten program"] if REWRITTEN in notes else []
    parts += ["in one program"] if NO_STAGES in notes else []
    parts += ["with as many micro-batches"] if AS_MANY in notes else []
    parts += [f"with choices {of} that were planned"] if of else []
    return " ".join(parts)


def asked_text(notes: Collection[str]) -> str:
    """Settings of the search to which the lower bound of a plan in stages holds; empty if none.

    Args:
        notes: of the plan that has the bound.
    """
    return next((note.removeprefix(ASKED) for note in notes if note.startswith(ASKED)), "")


def pipelines_text(notes: Collection[str]) -> str:
    """Which pipelines the lower bound of a plan in stages is of, as words after "pipeline".

    Args:
        notes: of the plan that has the bound.
    """
    asked = asked_text(notes)
    parts = ["of the rewritten program"] if REWRITTEN in notes else []
    parts += [f"as asked for ({asked}),"] if asked else []
    return " ".join([*parts, "with one kind of recomputation in each stage"])


def stop_text(stop: Stop, notes: Collection[str]) -> str:
    """Why a search ended, and of which plans its lower bound is if not of all.

    Args:
        stop: why.
        notes: of the plan that was found.
    """
    covered = covered_text(notes)
    return f"{stop.value} (the bound is of plans {covered})" if covered else stop.value
