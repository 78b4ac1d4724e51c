"""What each task of a schedule waits for, derived from the placement.

    forward(c, m)          forward(c', m)           c' -> c an edge of the placement
    forward(c, m, j)       forward(c, m, j - 1)     token slices: attention looks back
    backward(c, m)         forward(c, m), recompute(c, m), fetch(c, m)
    backward(c, m)         backward(c', m)          c -> c' an edge
    backward(c, m, j)      backward(c, m, j + 1)
    weight-gradient(c, m)  input-gradient(c, m)
    recompute, offload     forward(c, m)
    fetch                  offload(c, m)
    sync(c, u, k)          share (k + 1) / parts of the last weight gradient of update u
    optimizer(c, u)        the syncs of update u, else its last weight gradient

`backward` stands for the fused task or the input gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from .task import Kind
from .task_rows import ABSENT, Ints, Rows, update_of

Floats = NDArray[np.float64]
BACKWARDS = (Kind.BACKWARD, Kind.INPUT_GRADIENT)
WEIGHTS = (Kind.BACKWARD, Kind.WEIGHT_GRADIENT)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """`after[i]` waits for `share[i]` of `before[i]`; rows.

    gradient: whether the data is a gradient that flows back along an edge of the placement, or
        (flag 0) an activation that flows forward, or (flag -1) stays where it is.
    """

    before: Ints
    after: Ints
    share: Floats
    gradient: Ints


STAYS, ACTIVATION, GRADIENT = -1, 0, 1
_Pairs = list[tuple[Ints, Ints, "Floats | None", int]]


def needs_of(rows: Rows) -> Needs:
    """All data dependencies among rows."""
    pairs: _Pairs = [*_forward(rows), *_backward(rows), *_updates(rows)]
    before = np.concatenate([p[0] for p in pairs])
    after = np.concatenate([p[1] for p in pairs])
    share = np.concatenate([np.ones(len(p[0])) if p[2] is None else p[2] for p in pairs])
    flag = np.concatenate([np.full(len(p[0]), p[3], np.int64) for p in pairs])
    return Needs(before, after, share, flag)


def _joined(before: Ints, after: Ints, flag: int = STAYS) -> tuple[Ints, Ints, None, int]:
    """Pairs of which both rows exist."""
    both = (before != ABSENT) & (after != ABSENT)
    return before[both], after[both], None, flag


def _forward(rows: Rows) -> _Pairs:
    forward = rows.index(Kind.FORWARD)
    recompute, offload, fetch = (
        rows.index(kind) for kind in (Kind.RECOMPUTE, Kind.OFFLOAD, Kind.FETCH)
    )
    ends = np.array(rows.schedule.placement.edges, np.int64).reshape(-1, 2)
    return [
        _joined(forward[ends[:, 0]], forward[ends[:, 1]], ACTIVATION),
        _joined(forward[..., :-1], forward[..., 1:]),
        _joined(forward, recompute),
        _joined(forward, offload),
        _joined(offload, fetch),
    ]


def _backward(rows: Rows) -> _Pairs:
    forward, backward = rows.index(Kind.FORWARD), rows.index(*BACKWARDS)
    ends = np.array(rows.schedule.placement.edges, np.int64).reshape(-1, 2)
    return [
        _joined(backward[ends[:, 1]], backward[ends[:, 0]], GRADIENT),
        _joined(backward[..., 1:], backward[..., :-1]),
        _joined(forward, backward),
        _joined(rows.index(Kind.RECOMPUTE), backward),
        _joined(rows.index(Kind.FETCH), backward),
        _joined(rows.index(Kind.INPUT_GRADIENT), rows.index(Kind.WEIGHT_GRADIENT)),
    ]


def _updates(rows: Rows) -> _Pairs:
    last = _last_weight_gradient(rows)
    syncs, steps = rows.select(Kind.SYNC), rows.select(Kind.OPTIMIZER)
    parts = np.zeros_like(last)
    np.maximum.at(parts, (rows.chunk[syncs], rows.microbatch[syncs]), rows.part[syncs] + 1)
    at = (rows.chunk[syncs], rows.microbatch[syncs])
    share = (rows.part[syncs] + 1) / np.maximum(parts[at], 1)
    known = last[at] != ABSENT
    pairs: _Pairs = [(last[at][known], syncs[known], share[known], STAYS)]
    pairs.append(_joined(last[rows.chunk[steps], rows.microbatch[steps]], steps))
    of_step = np.full(last.shape, ABSENT, np.int64)
    of_step[rows.chunk[steps], rows.microbatch[steps]] = steps
    pairs.append(_joined(syncs, of_step[at]))
    return pairs


def _last_weight_gradient(rows: Rows) -> Ints:
    """Last row by (chunk, update) that adds to the gradients."""
    weights = rows.select(*WEIGHTS)
    update = update_of(rows.schedule, rows.microbatch)
    count = int(update.max(initial=0)) + 1
    for kind in (Kind.SYNC, Kind.OPTIMIZER):
        count = max(count, int(rows.microbatch[rows.select(kind)].max(initial=-1)) + 1)
    last = np.full((rows.schedule.placement.chunks, count), ABSENT, np.int64)
    np.maximum.at(last, (rows.chunk[weights], update[weights]), weights)
    return last
