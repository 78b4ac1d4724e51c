"""Why a search ended."""

from __future__ import annotations

import enum

PROVED = 1e-3  # relative: the gap up to which a plan counts as proved optimal


class Stop(enum.Enum):
    """The value is the sentence shown to the user."""

    OPTIMAL = "proved optimal"
    GAP = "best found; the gap to the lower bound is not closed"
    TIME_LIMIT = "time limit reached; best plan so far returned; raise the time limit to go on"
    INTERRUPTED = "interrupted; best found so far returned"
    INFEASIBLE = "nothing fits; add devices, raise the memory limit or shrink the batch"
