"""Checks that a schedule can run: every task once, on its chunk's device, and no deadlock."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import NoReturn

import numpy as np

from ...common.errors import PlanError
from .dependencies import needs_of
from .event_graph import Graph, graph_of, transfers_of
from .longest_paths import levels_of
from .table import Schedule
from .task import Kind, Task
from .task_rows import ABSENT, Ints, Rows, rows_of

SHOWN = 8  # tasks of a deadlock that an error names


def check(schedule: Schedule) -> Schedule:
    """Checks a schedule and returns it.

    Raises:
        PlanError: if a task is missing, duplicate, on the wrong device, placed before one that it
            reads, or part of a deadlock.
    """
    rows = checked_rows(schedule)
    graph = graph_of(rows, links=False, overlap=True)
    _, stuck = levels_of(graph)
    if len(stuck):
        refuse_deadlock(graph, stuck)
    return schedule


def checked_rows(schedule: Schedule) -> Rows:
    """Columns of a schedule whose tasks are complete and in a possible order.

    Raises:
        PlanError: as `check`, except for deadlocks.
    """
    rows = rows_of(schedule)
    _check_devices(rows)
    _check_doubles(rows)
    _check_complete(rows)
    needs = needs_of(rows)
    _check_order(rows, needs.before, needs.after)
    moved = transfers_of(rows, needs)
    _check_order(rows, moved.source, moved.issue)
    _check_order(rows, moved.arrive, moved.target)
    return rows


def _refuse(device: int, message: str, remedy: str) -> NoReturn:
    raise PlanError(message, kind="bad-schedule", where=f"device {device}", remedy=remedy)


def _check_devices(rows: Rows) -> None:
    home = np.array(rows.schedule.placement.device)[rows.chunk]
    wrong = np.flatnonzero(home != rows.device)
    if len(wrong):
        row = int(wrong[0])
        _refuse(
            int(rows.device[row]),
            f"lists the {rows.task(row)}, which is on device {int(home[row])}",
            "move the task there, or change the placement",
        )  # fmt: skip


def _check_doubles(rows: Rows) -> None:
    columns = np.stack((rows.kind, rows.chunk, rows.microbatch, rows.part, rows.peer))
    order = np.lexsort(columns[::-1])
    same = np.all(columns[:, order[1:]] == columns[:, order[:-1]], axis=0)
    if same.any():
        row = int(order[1:][same][0])
        _refuse(
            int(rows.device[row]), f"lists the {rows.task(row)} twice",
            "list every task once",
        )  # fmt: skip


def _check_complete(rows: Rows) -> None:
    """Checks that each route has all forwards, and in training backwards, fused or in halves."""
    schedule = rows.schedule
    wanted = np.zeros((schedule.placement.chunks, schedule.microbatches, schedule.slices), bool)
    route = np.array(schedule.route)
    for number, chunks in enumerate(schedule.placement.routes):
        for chunk in chunks:
            wanted[chunk, route == number] = True
    whole, first, second = (
        rows.index(kind) != ABSENT
        for kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    )
    _same(rows, wanted, rows.index(Kind.FORWARD) != ABSENT, Kind.FORWARD)
    if schedule.trains:
        _same(rows, wanted & ~first & ~second, whole, Kind.BACKWARD)
        _same(rows, wanted & ~whole, first, Kind.INPUT_GRADIENT)
        _same(rows, wanted & ~whole, second, Kind.WEIGHT_GRADIENT)
    for kind in (Kind.RECOMPUTE, Kind.OFFLOAD, Kind.FETCH):
        found = rows.index(kind) != ABSENT
        _same(rows, found & wanted, found, kind)
    _same(rows, rows.index(Kind.FETCH) != ABSENT, rows.index(Kind.OFFLOAD) != ABSENT, Kind.OFFLOAD)


def _same(rows: Rows, wanted: np.ndarray, found: np.ndarray, kind: Kind) -> None:
    differs = np.argwhere(wanted != found)
    if not len(differs):
        return
    chunk, microbatch, part = (int(number) for number in differs[0])
    task = Task(kind, chunk, microbatch, part)
    device = rows.schedule.placement.device[chunk]
    if wanted[chunk, microbatch, part]:
        _refuse(device, f"lacks the {task}", "list every task once")
    _refuse(
        device, f"lists the {task}, which nothing asks for",
        "give each chunk the micro-batches of its route, and a backward whole or in its halves",
    )  # fmt: skip


def _check_order(rows: Rows, before_rows: Ints, after_rows: Ints) -> None:
    """Checks that no task precedes one on its own device that it reads."""
    same = rows.device[before_rows] == rows.device[after_rows]
    early = np.flatnonzero(same & (before_rows > after_rows))
    if len(early):
        before, after = int(before_rows[early[0]]), int(after_rows[early[0]])
        _refuse(
            int(rows.device[after]),
            f"the {rows.task(after)} reads too early: it stands before the {rows.task(before)}",
            "change their order",
        )  # fmt: skip


def refuse_deadlock(graph: Graph, stuck: Ints) -> NoReturn:
    """Raises an error that names tasks waiting for each other.

    Args:
        graph: graph of the schedule.
        stuck: nodes that never become ready.

    Raises:
        PlanError: always.
    """
    rows = graph.rows
    ring = [row for row in _ring(graph, stuck) if row < len(rows.kind)]
    named = [f"the {rows.task(row)} (device {int(rows.device[row])})" for row in ring]
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    raise PlanError(
        f"deadlock: {' waits for '.join(named[:SHOWN])}{more}", kind="bad-schedule",
        where="schedule", remedy="change the order of the tasks on one of these devices",
    )  # fmt: skip


def _ring(graph: Graph, stuck: Ints) -> list[int]:
    """A cycle of nodes, each of which waits for the next; the last is the first."""
    inside = np.isin(graph.before, stuck) & np.isin(graph.after, stuck)
    waits: TopologicalSorter[int] = TopologicalSorter()
    ends = (graph.after[inside].tolist(), graph.before[inside].tolist())
    for after, before in zip(*ends, strict=True):
        waits.add(after, before)
    try:
        waits.prepare()
    except CycleError as error:
        ring: list[int] = error.args[1]
        return ring[::-1]
    return []
