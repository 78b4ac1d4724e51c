"""The tables of a schedule as one set of columns, with an index from task to row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...common.errors import PlanError
from .table import Schedule
from .task import Kind, Task

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
ABSENT = -1
_KINDS = len(Kind)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All tasks, device after device; `first[d]` is the first row of device d."""

    schedule: Schedule
    kind: Ints
    chunk: Ints
    microbatch: Ints
    part: Ints
    peer: Ints
    device: Ints
    first: Ints

    def task(self, row: int) -> Task:
        """The task of a row."""
        numbers = (self.chunk, self.microbatch, self.part, self.peer)
        return Task(Kind(int(self.kind[row])), *(int(column[row]) for column in numbers))

    def select(self, *kinds: Kind) -> Ints:
        """Rows of these kinds, in order."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    def index(self, *kinds: Kind) -> Ints:
        """Row of the task of these kinds by (chunk, micro-batch, slice), `ABSENT` where none.

        Where a task has two such rows the later one counts; `check.py` refuses that.
        """
        schedule = self.schedule
        shape = (schedule.placement.chunks, schedule.microbatches, schedule.slices)
        table = np.full(shape, ABSENT, np.int64)
        rows = self.select(*kinds)
        table[self.chunk[rows], self.microbatch[rows], self.part[rows]] = rows
        return table


def rows_of(schedule: Schedule) -> Rows:
    """Columns of all tables.

    Raises:
        PlanError: for a number that names no kind, chunk, micro-batch or part.
    """
    sizes = [len(table) for table in schedule.tables]
    columns = np.concatenate([t.T for t in schedule.tables], axis=1).astype(np.int64)
    device = np.repeat(np.arange(schedule.devices), sizes)
    first = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    kind, chunk, microbatch, part, peer = columns
    rows = Rows(schedule, kind, chunk, microbatch, part, peer, device, first)
    _check_ranges(rows)
    return rows


def _check_ranges(rows: Rows) -> None:
    schedule = rows.schedule
    chunks = schedule.placement.chunks
    updates = updates_of(schedule)
    update = np.isin(rows.kind, (Kind.SYNC, Kind.OPTIMIZER))
    moves = (rows.kind >= Kind.SEND_ACTIVATION) & (rows.kind <= Kind.RECEIVE_GRADIENT)
    parts = np.where(rows.kind == Kind.SYNC, np.iinfo(np.int32).max, schedule.slices)
    for what, column, size in (
        ("kind", rows.kind, _KINDS),
        ("chunk", rows.chunk, chunks),
        ("micro-batch", rows.microbatch, np.where(update, updates, schedule.microbatches)),
        ("part", rows.part, parts),
        ("peer", np.where(moves, rows.peer, 0), chunks),
    ):
        wrong = np.flatnonzero((column < 0) | (column >= size))
        if len(wrong):
            row = int(wrong[0])
            most = int(np.broadcast_to(size, column.shape)[row])
            raise PlanError(
                f"its task {row - int(rows.first[rows.device[row]])} names {what} "
                f"{int(column[row])}, there are {most}", kind="bad-schedule",
                where=f"device {int(rows.device[row])}", remedy="number them from 0",
            )  # fmt: skip


def updates_of(schedule: Schedule) -> int:
    """Updates of the weights in one step."""
    every = schedule.update_every
    return -(-schedule.microbatches // every) if every else 1


def update_of(schedule: Schedule, microbatch: Ints) -> Ints:
    """The update that each micro-batch belongs to."""
    every = schedule.update_every
    return microbatch // every if every else np.zeros_like(microbatch)
