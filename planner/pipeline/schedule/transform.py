"""Adds tasks to a schedule: transfers, gradient sums, updates, recomputation, offload."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ...common.errors import PlanError
from .dependencies import BACKWARDS, WEIGHTS, needs_of
from .event_graph import transfers_of
from .table import COLUMNS, Schedule, Table
from .task import COMPUTE, Kind
from .task_rows import ABSENT, Ints, Rows, rows_of, update_of, updates_of


def with_transfers(schedule: Schedule) -> Schedule:
    """Sends right after the task that produces, receives right before the task that reads.

    This is the form that a runtime executes; simulated times are the same.
    """
    if schedule.has_transfers:
        return schedule
    rows = rows_of(schedule)
    moved = transfers_of(rows, needs_of(rows))
    flag = moved.is_gradient
    send = np.where(flag, Kind.SEND_GRADIENT, Kind.SEND_ACTIVATION)
    receive = np.where(flag, Kind.RECEIVE_GRADIENT, Kind.RECEIVE_ACTIVATION)
    sends = _copied(rows, moved.source, send, rows.chunk[moved.target])
    receives = _copied(rows, moved.target, receive, rows.chunk[moved.source])
    return _inserted(rows, [(moved.source, 1, sends), (moved.target, -1, receives)])


def with_sync(schedule: Schedule, *, parts: int = 1) -> Schedule:
    """Sums the gradients of every chunk, in parts, as its last weight gradient produces them."""
    if parts < 1:
        raise PlanError(f"{parts} parts", kind="bad-schedule", where="sync", remedy="use 1 or more")
    rows = rows_of(schedule)
    last = _last(rows)
    chunk, update = np.nonzero(last != ABSENT)
    anchor = np.repeat(last[chunk, update], parts)
    table = np.full((len(anchor), COLUMNS), -1, np.int64)
    table[:, 0] = Kind.SYNC
    table[:, 1] = np.repeat(chunk, parts)
    table[:, 2] = np.repeat(update, parts)
    table[:, 3] = np.tile(np.arange(parts), len(chunk))
    return _inserted(rows, [(anchor, 1, table)])


def with_optimizer(schedule: Schedule) -> Schedule:
    """Adds updates of the weights at the end of every device, or every `update_every`."""
    rows = rows_of(schedule)
    if len(rows.select(Kind.OPTIMIZER)):
        return schedule
    last = _last(rows)
    chunk, update = np.nonzero(last != ABSENT)
    device = np.array(schedule.placement.device)[chunk]
    ends = rows.first[device + 1] - 1
    anchor = last[chunk, update] if schedule.update_every else ends
    table = np.full((len(anchor), COLUMNS), -1, np.int64)
    table[:, 0], table[:, 1], table[:, 2], table[:, 3] = Kind.OPTIMIZER, chunk, update, 0
    return _inserted(rows, [(anchor, 2, table)])


def with_recomputation(schedule: Schedule, stages: Collection[int] | None = None) -> Schedule:
    """Repeats the forward of these stages (all if None) right before each backward.

    It does not wait for the incoming gradient, so it may run while that is still on its way.
    """
    rows = rows_of(schedule)
    stage = np.array(schedule.placement.stage)[rows.chunk]
    back = rows.select(*BACKWARDS)
    if stages is not None:
        back = back[np.isin(stage[back], list(stages))]
    again = _copied(rows, back, np.full(len(back), int(Kind.RECOMPUTE)), np.full(len(back), -1))
    return _inserted(rows, [(back, -2, again)])


def with_offload(
    schedule: Schedule, stages: Collection[int] | None = None, *, ahead: int = 2
) -> Schedule:
    """Moves activations of these stages (all if None) to the host after each forward.

    They come back `ahead` compute tasks before their backward. Where fewer than 2 * ahead tasks
    lie between forward and backward, they stay.
    """
    rows = rows_of(schedule)
    forward = rows.select(Kind.FORWARD)
    key = (rows.chunk[forward], rows.microbatch[forward], rows.part[forward])
    back = rows.index(*BACKWARDS)[key]
    compute = np.cumsum(np.isin(rows.kind, COMPUTE))
    chosen = (back != ABSENT) & (compute[back] - compute[forward] > 2 * ahead)
    if stages is not None:
        stage = np.array(schedule.placement.stage)[rows.chunk[forward]]
        chosen &= np.isin(stage, list(stages))
    forward, back = forward[chosen], back[chosen]
    early = np.searchsorted(compute, compute[back] - ahead)
    none = np.full(len(forward), -1)
    out = _copied(rows, forward, np.full(len(forward), int(Kind.OFFLOAD)), none)
    fetch = _copied(rows, forward, np.full(len(forward), int(Kind.FETCH)), none)
    return _inserted(rows, [(forward, 1, out), (early, -1, fetch)])


def _last(rows: Rows) -> Ints:
    """Row of the last weight gradient by (chunk, update)."""
    weights = rows.select(*WEIGHTS)
    shape = (rows.schedule.placement.chunks, updates_of(rows.schedule))
    last = np.full(shape, ABSENT, np.int64)
    update = update_of(rows.schedule, rows.microbatch)
    np.maximum.at(last, (rows.chunk[weights], update[weights]), weights)
    return last


def _copied(rows: Rows, at: Ints, kind: np.ndarray, peer: np.ndarray) -> np.ndarray:
    """Tasks on the same chunk, micro-batch and slice as the rows `at`."""
    return np.stack((kind, rows.chunk[at], rows.microbatch[at], rows.part[at], peer), axis=1)


def _inserted(rows: Rows, new: list[tuple[Ints, int, np.ndarray]]) -> Schedule:
    """Tables with tasks inserted before (negative side) or after given rows."""
    old = np.stack((rows.kind, rows.chunk, rows.microbatch, rows.part, rows.peer), axis=1)
    count = len(rows.kind)
    anchor = np.concatenate([np.arange(count), *(at for at, _, _ in new)])
    side = np.concatenate([np.zeros(count), *(np.full(len(at), s) for at, s, _ in new)])
    full = np.concatenate([old, *(table for _, _, table in new)])
    order = np.lexsort((np.arange(len(full)), side, anchor))
    device = rows.device[anchor[order]]
    at = np.searchsorted(device, np.arange(rows.schedule.devices + 1))
    ordered: Table = full[order].astype(np.int32)
    tables = tuple(ordered[at[d] : at[d + 1]].copy() for d in range(rows.schedule.devices))
    return replace(rows.schedule, tables=tables)
