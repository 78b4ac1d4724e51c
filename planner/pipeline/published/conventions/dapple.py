"""DAPPLE's latency around its pivot stage Q, the one with the fewest bubbles.

    L = sum_{s <= Q} F_s + (M - 1)(F_Q + B_Q) + max_s (AR_s + K_s)
    K_s = sum_{a = s..Q} B_a for s <= Q, else -sum_{a = Q..s} B_a

Transfers are stages of their own without an all-reduce. Q starts at the last stage and moves to an
earlier s where (M - 1)(F_s + B_s) > (M - 1)(F_Q + B_Q) + sum_{s < a < Q} (F_a + B_a).

A label holds, for the stages so far, all of which may only grow as stages are put in front:
    0  the right-hand side of that comparison for the next stage
    1  latency so far
    2  the same with the next all-reduce left out: sum F + (M - 1)(F_Q + B_Q) + sum_{a <= Q} B_a
    3  the largest AR_s - sum_{a <= s} B_a, which counts should the next stage become the pivot

The formula is an estimate and not monotone: a slower stage may move the pivot and so lower it. The
search compares all divisions and degrees exactly, and for each the fastest recomputation
that fits; one slower than needed is not considered.

Source: Fan et al., "DAPPLE", PPoPP 2021, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..convention import Convention, Floats, StageTerms


def dapple_step_s(stages: Sequence[StageTerms], microbatches: int) -> float:
    """Seconds of a step, transfers put in as stages."""
    rows: list[tuple[float, float, float]] = []
    for stage in stages:
        rows.append((float(stage.forward_s), float(stage.backward_s), float(stage.late_s)))
        rows.append((float(stage.leave_s), float(stage.leave_s), 0.0))
    rows.pop()
    pivot = _pivot(rows, microbatches)
    warm = sum(row[0] for row in rows[: pivot + 1])
    steady = (microbatches - 1) * (rows[pivot][0] + rows[pivot][1])
    ends = [
        late + sum(row[1] for row in rows[s : pivot + 1])
        if s <= pivot
        else late - sum(row[1] for row in rows[pivot : s + 1])
        for s, (_, _, late) in enumerate(rows)
    ]
    return warm + steady + max(ends)


def _pivot(rows: Sequence[tuple[float, float, float]], microbatches: int) -> int:
    pivot = len(rows) - 1
    for s in range(len(rows) - 2, -1, -1):
        candidate = (microbatches - 1) * (rows[s][0] + rows[s][1])
        between = sum(row[0] + row[1] for row in rows[s + 1 : pivot])
        if candidate > (microbatches - 1) * (rows[pivot][0] + rows[pivot][1]) + between:
            pivot = s
    return pivot


def _put(labels: Floats, f: Floats, b: Floats, late: Floats, microbatches: int) -> Floats:
    """Labels with one row in front."""
    steady = (microbatches - 1) * (f + b)
    ahead = np.maximum(labels[:, 3], late) - b
    whole = labels[:, 2] + f + b
    stay = (labels[:, 0] + f + b, np.maximum(labels[:, 1] + f, whole + late), whole, ahead)
    # As the pivot: its own exchange follows its backward, later stages began theirs before it.
    ends = np.maximum(b + late, labels[:, 3] - b)
    move = (steady, f + steady + ends, f + steady + b, ahead)
    moves = steady > labels[:, 0]
    return np.where(moves[:, None], np.stack(move, axis=1), np.stack(stay, axis=1))


def _extend(labels: Floats, stage: StageTerms, microbatches: int) -> Floats:
    is_last = np.isneginf(labels[:, 0])[:, None]
    nothing = np.zeros_like(stage.leave_s)
    moved = _put(labels, stage.leave_s, stage.leave_s, nothing, microbatches)
    joined = np.where(is_last, labels, moved)
    return _put(joined, stage.forward_s, stage.backward_s, stage.late_s, microbatches)


def _value(labels: Floats, microbatches: int) -> Floats:
    return labels[:, 1]


def _bound(labels: Floats, microbatches: int) -> Floats:
    # A later pivot change may hide an exchange and so lower the latency, never the comparison.
    return labels[:, 0]


DAPPLE = Convention(
    "dapple", "Fan et al., PPoPP 2021, section 4", "1f1b", by_replicas=False, stashes=False,
    averages=False, divides=False, step_s=dapple_step_s, seconds=None, start=(-np.inf,) * 4,
    extend=_extend, value=_value, bound=_bound,
)  # fmt: skip
