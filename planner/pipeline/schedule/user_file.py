"""A user's own schedule: a JSON file of tasks, read strictly and checked before use."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, final

import msgspec
import numpy as np
from msgspec import Meta

from ...common.errors import PlanError
from ...common.write_files import write_files
from .check import check
from .costs import Links, Numbers, StageCosts
from .placement import Placement
from .table import COLUMNS, MOST_TASKS, Schedule, Table
from .task import BY_WORD, Row

FORMAT = "meshwright-schedule"
FILE_VERSION = 1
LARGEST_BYTES = 1 << 30

Number = Annotated[int, Meta(ge=0, le=10**9)]
Count = Annotated[int, Meta(ge=1, le=10**6)]
Word = Annotated[str, Meta(pattern=f"^({'|'.join(BY_WORD)})$")]


class TaskRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`["forward", chunk, micro-batch]`, then part and peer where they matter."""

    kind: Word
    chunk: Number
    microbatch: Number
    part: Number = Row._field_defaults["part"]
    peer: Annotated[int, Meta(ge=-1, le=10**9)] = Row._field_defaults["peer"]


class ScheduleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule in the form of its file; see `Schedule` and `Placement` for the fields.

    stage: the chunk's own number for each chunk if empty; edges: a chain if empty; routes: one
    through all chunks if empty. costs, links, memory_bytes: to simulate it with.
    """

    format: str
    version: int
    devices: Count
    device: tuple[Number, ...]
    microbatches: Count
    tasks: tuple[tuple[TaskRow, ...], ...]
    name: Annotated[str, Meta(max_length=80)] = "own"
    stage: tuple[Number, ...] = ()
    edges: tuple[tuple[Number, Number], ...] = ()
    routes: tuple[tuple[Number, ...], ...] = ()
    route: tuple[Number, ...] = ()
    slices: Count = 1
    update_every: Number = 0
    costs: StageCosts | None = None
    links: Links | None = None
    memory_bytes: Numbers = ()


@final
@dataclass(frozen=True, slots=True)
class OwnSchedule:
    """A user's schedule, checked, and the costs, links and limits to simulate it with, if given."""

    schedule: Schedule
    costs: StageCosts | None
    links: Links | None
    memory_bytes: tuple[float, ...]


def read_schedule(path: str | Path) -> Schedule:
    """Reads and checks a schedule; nothing in the file is executed.

    Raises:
        PlanError: if the file cannot be read or is malformed, or its schedule cannot run.
    """
    return read_own(path).schedule


def read_own(path: str | Path) -> OwnSchedule:
    """Reads a schedule with its costs.

    Raises:
        PlanError: as `read_schedule`, and for costs that do not fit the schedule.
    """
    where = str(path)
    try:
        file = Path(path)
        if file.exists() and (not file.is_file() or file.stat().st_size > LARGEST_BYTES):
            raise OSError(0, "it is no plain file of bearable size")
        data = file.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanError(
            f"cannot be read: {reason}", kind="schedule-file", where=where, remedy="check the path"
        ) from error
    try:
        return _own(msgspec.json.decode(data, type=ScheduleFile))
    except (ValueError, RecursionError) as error:
        found = error if isinstance(error, PlanError) else error.__cause__
        if isinstance(found, PlanError):  # of a record in the file
            place = f"{found.where}: " if found.where else ""
            raise PlanError(
                f"{place}{found.message}", kind=found.kind, where=where, remedy=found.remedy
            ) from error
        raise PlanError(
            f"is not a valid schedule: {error}", kind="schedule-file", where=where,
            remedy="see docs/schedules.md for the form",
        ) from error  # fmt: skip


def write_schedule(path: str | Path, schedule: Schedule) -> None:
    """Writes a schedule; the same schedule gives the same bytes.

    Raises:
        PlanError: if the folder cannot be written.
    """
    data = msgspec.json.encode(file_of(schedule), order="deterministic")
    write_files([(Path(path), data + b"\n")], kind="schedule-file")


def _own(file: ScheduleFile) -> OwnSchedule:
    schedule = schedule_of(file)
    if len(file.memory_bytes) not in (0, schedule.devices):
        raise PlanError(
            f"has {len(file.memory_bytes)} numbers for {schedule.devices} devices",
            kind="schedule-file", where="memory_bytes", remedy="give one for each device",
        )  # fmt: skip
    return OwnSchedule(schedule, file.costs, file.links, file.memory_bytes)


def schedule_of(file: ScheduleFile) -> Schedule:
    """The checked schedule of a file.

    Raises:
        PlanError: if it is of another format or version, or cannot run.
    """
    if (file.format, file.version) != (FORMAT, FILE_VERSION):
        raise PlanError(
            f"is of format {file.format!r} version {file.version}, expected {FORMAT!r} version "
            f"{FILE_VERSION}", kind="schedule-file", remedy="write it anew",
        )  # fmt: skip
    if sum(map(len, file.tasks)) > MOST_TASKS:
        raise PlanError(
            f"has more than {MOST_TASKS} tasks", kind="schedule-file", remedy="use fewer"
        )
    chunks = tuple(range(len(file.device)))
    whole = not file.routes and not file.edges
    edges = tuple(pairwise(chunks)) if whole else file.edges
    placement = Placement(
        file.devices, file.device, file.stage or chunks, edges, file.routes or (chunks,)
    )
    schedule = Schedule(
        file.name, placement, file.microbatches, tuple(map(_table, file.tasks)), file.route,
        file.slices, file.update_every,
    )  # fmt: skip
    return check(schedule)


def file_of(schedule: Schedule) -> ScheduleFile:
    """A schedule in the form of a file."""
    placement = schedule.placement
    tasks = tuple(
        tuple(TaskRow(t.kind.word, t.chunk, t.microbatch, t.part, t.peer) for t in tasks)
        for tasks in map(schedule.tasks, range(schedule.devices))
    )
    return ScheduleFile(
        FORMAT, FILE_VERSION, placement.devices, placement.device, schedule.microbatches, tasks,
        schedule.name, placement.stage, placement.edges, placement.routes, schedule.route,
        schedule.slices, schedule.update_every,
    )  # fmt: skip


def _table(tasks: tuple[TaskRow, ...]) -> Table:
    rows = [(BY_WORD[t.kind], t.chunk, t.microbatch, t.part, t.peer) for t in tasks]
    return np.array(rows, np.int32).reshape(len(rows), COLUMNS)
