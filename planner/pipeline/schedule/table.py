"""A schedule as data: for each device the list of its tasks, in the order in which they start.

Nothing here says when a task runs. Dependencies follow from the placement (`dependencies.py`),
times from costs (`simulate.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...common.errors import PlanError
from .placement import Placement
from .task import Kind, Row, Task

Table = NDArray[np.int32]
COLUMNS = len(Row._fields)
MOST_TASKS = 50_000_000


def _bad(message: str, remedy: str) -> PlanError:
    return PlanError(message, kind="bad-schedule", where="schedule", remedy=remedy)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Order of the tasks of one step on every device.

    A table has one row per task: kind, chunk, micro-batch, part, peer (see `Row`). Sends and
    receives are either all in the tables, as a runtime runs them, or none of them is: each then
    happens as soon as its data exists. Tables are read-only.

    name: of the family, such as `1f1b`.
    tables: one for each device, shape [tasks, 5].
    route: index of the route that each micro-batch takes; all 0 if empty.
    slices: token slices of a micro-batch.
    update_every: micro-batches between updates of the weights; 0 for one update at the end.
    """

    name: str
    placement: Placement
    microbatches: int
    tables: tuple[Table, ...]
    route: tuple[int, ...] = ()
    slices: int = 1
    update_every: int = 0

    def __post_init__(self) -> None:
        if self.microbatches < 1 or self.slices < 1 or self.update_every < 0:
            raise _bad(
                f"has {self.microbatches} micro-batches in {self.slices} slices", "use 1 or more"
            )
        if not self.route:
            object.__setattr__(self, "route", (0,) * self.microbatches)
        known = range(len(self.placement.routes))
        if len(self.route) != self.microbatches or any(r not in known for r in self.route):
            raise _bad(
                f"names {len(self.route)} routes for {self.microbatches} micro-batches, the "
                f"placement has {len(known)}", "name one of its routes for each",
            )  # fmt: skip
        if len(self.tables) != self.placement.devices:
            raise _bad(
                f"has {len(self.tables)} tables for {self.placement.devices} devices",
                "give one list of tasks for each device",
            )
        for table in self.tables:
            if table.ndim != 2 or table.shape[1] != COLUMNS:
                raise _bad(f"has a table of shape {table.shape}", f"give {COLUMNS} columns")
            table.setflags(write=False)

    @property
    def devices(self) -> int:
        """Devices, each a stage's whole sub-mesh."""
        return self.placement.devices

    @property
    def size(self) -> int:
        """Number of tasks on all devices."""
        return sum(len(table) for table in self.tables)

    @property
    def has_transfers(self) -> bool:
        """Whether sends and receives are in the tables."""
        low, high = Kind.SEND_ACTIVATION, Kind.RECEIVE_GRADIENT
        return any(bool(np.any((t[:, 0] >= low) & (t[:, 0] <= high))) for t in self.tables)

    @property
    def trains(self) -> bool:
        """Whether there are backward tasks; a schedule of forwards alone is for inference."""
        low, high = Kind.BACKWARD, Kind.WEIGHT_GRADIENT
        return any(bool(np.any((t[:, 0] >= low) & (t[:, 0] <= high))) for t in self.tables)

    def tasks(self, device: int) -> Iterator[Task]:
        """Tasks of one device in order."""
        for kind, chunk, microbatch, part, peer in self.tables[device].tolist():
            yield Task(Kind(kind), chunk, microbatch, part, peer)

    def digest(self) -> str:
        """Digest of the contents without the schedule's name."""
        head = (self.placement, self.microbatches, self.route, self.slices, self.update_every)
        sha = hashlib.sha256(repr(head).encode())
        for table in self.tables:
            sha.update(len(table).to_bytes(8, "little"))
            sha.update(np.ascontiguousarray(table, dtype="<i4").tobytes())
        return sha.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())


def table_of(rows: Sequence[Sequence[int]]) -> Table:
    """Rows of equal length as a table; missing last columns take their defaults."""
    table = np.empty((len(rows), COLUMNS), np.int32)
    table[:, 3:] = (Row._field_defaults["part"], Row._field_defaults["peer"])
    if rows:
        given = np.array(rows, np.int32)
        table[:, : given.shape[1]] = given
    return table
