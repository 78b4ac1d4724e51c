"""Fills idle time of a schedule: tasks move ahead of others that are not ready yet.

Each device goes through its list in order, but takes a later task where the next one has to wait.
It does so only if the rest of the list, run in order after that, still fits in memory; so nothing
can get stuck, and memory stays within its limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from planner.pipeline.schedule.costs import Links, StageCosts
from planner.pipeline.schedule.dependencies import needs_of
from planner.pipeline.schedule.round import TOLERANCE, transfer_s
from planner.pipeline.schedule.simulate import task_s
from planner.pipeline.schedule.table import Schedule
from planner.pipeline.schedule.task import Kind
from planner.pipeline.schedule.task_rows import Rows, rows_of


def compact(
    schedule: Schedule,
    costs: StageCosts,
    *,
    links: Links | None = None,
    room_bytes: Sequence[float] = (),
    early: Collection[Kind] = tuple(Kind),
    window: int = 64,
) -> Schedule:
    """The same tasks in the order in which this scheduler runs them.

    Args:
        schedule: of forwards and backwards without transfers, that fits in memory as it is.
        costs: whose times decide what is ready.
        links: between devices; transfers count as delays.
        room_bytes: for activations on each device; no limit if empty.
        early: kinds of tasks that may move ahead.
        window: how far ahead in its list a device looks.
    """
    rows = rows_of(schedule)
    run = _Run(rows, costs, links, room_bytes, frozenset(int(k) for k in early), window)
    order = run.order()
    tables = tuple(
        np.array(schedule.tables[d][np.array(mine, np.int64) - int(rows.first[d])])
        for d, mine in enumerate(order)
    )
    return replace(schedule, tables=tables)


class _Run:
    """One pass over time; tasks are numbered by row."""

    def __init__(
        self,
        rows: Rows,
        costs: StageCosts,
        links: Links | None,
        room_bytes: Sequence[float],
        early: frozenset[int],
        window: int,
    ) -> None:
        self.rows, self.early, self.window = rows, early, window
        devices = rows.schedule.devices
        self.room = list(room_bytes) or [float("inf")] * devices
        self.seconds: list[float] = task_s(rows, costs).tolist()
        self.kind: list[int] = rows.kind.tolist()
        self.change = _changes(rows, costs)
        self.home: list[int] = rows.device.tolist()
        self.readers, self.waits = _readers(rows, costs, links)
        self.ready_s = [0.0] * len(self.kind)
        first: list[int] = rows.first.tolist()
        self.left = [list(range(a, b)) for a, b in pairwise(first)]
        self.held = [0.0] * devices
        self.free_s = [0.0] * devices
        self.events = [(0.0, d) for d in range(devices)]

    def order(self) -> list[list[int]]:
        """Rows of each device in the order in which they run."""
        found: list[list[int]] = [[] for _ in self.left]
        while self.events:
            now, device = heapq.heappop(self.events)
            if self.free_s[device] > now or not self.left[device]:
                continue
            place = self._choose(device, now)
            if place is not None:
                row = self.left[device].pop(place)
                found[device].append(row)
                self._run(row, device, now)
        return found

    def _choose(self, device: int, now: float) -> int | None:
        """Place in the device's list of what to run now."""
        left, held = self.left[device], self.held[device]
        most = held
        for place, row in enumerate(left[: self.window]):
            change = self.change[row]
            if self.waits[row] == 0 and self.ready_s[row] <= now:
                # Ahead of its place it is held on top of all that comes before it.
                fits = most + max(change, 0.0) <= self.room[device] * (1 + TOLERANCE)
                if place == 0 or (self.kind[row] in self.early and fits):
                    return place
            held += change
            most = max(most, held)
        return None

    def _run(self, row: int, device: int, now: float) -> None:
        end = now + self.seconds[row]
        self.free_s[device] = end
        self.held[device] += self.change[row]
        heapq.heappush(self.events, (end, device))
        for reader, gap, share in self.readers[row]:
            self.waits[reader] -= 1
            self.ready_s[reader] = max(self.ready_s[reader], now + share * self.seconds[row] + gap)
            if self.waits[reader] == 0:
                heapq.heappush(self.events, (self.ready_s[reader], self.home[reader]))


def _changes(rows: Rows, costs: StageCosts) -> list[float]:
    """Bytes that each task adds to what its device holds; negative where it frees."""
    stage = np.array(rows.schedule.placement.stage)[rows.chunk]
    whole = np.array(costs.activation_bytes)
    kept = np.minimum(whole, np.array(costs.weight_input_bytes))
    table = np.zeros((len(Kind), costs.stages))
    table[Kind.FORWARD], table[Kind.BACKWARD] = whole, -whole
    table[Kind.INPUT_GRADIENT], table[Kind.WEIGHT_GRADIENT] = kept - whole, -kept
    changes: list[float] = table[rows.kind, stage].tolist()
    return changes


def _readers(
    rows: Rows, costs: StageCosts, links: Links | None
) -> tuple[list[list[tuple[int, float, float]]], list[int]]:
    """Who waits for each task, with the delay and the share of it; and for how many each waits."""
    needs = needs_of(rows)
    placement = rows.schedule.placement
    known: dict[tuple[int, int], float] = {}
    readers: list[list[tuple[int, float, float]]] = [[] for _ in rows.kind]
    waits = [0] * len(rows.kind)
    chunk: list[int] = rows.chunk.tolist()
    befores: list[int] = needs.before.tolist()
    afters: list[int] = needs.after.tolist()
    shares: list[float] = needs.share.tolist()
    for before, after, share in zip(befores, afters, shares, strict=True):
        pair = (chunk[before], chunk[after])
        if pair not in known:
            known[pair] = 0.0 if pair[0] == pair[1] else transfer_s(placement, costs, links, *pair)
        readers[before].append((after, known[pair], share))
        waits[after] += 1
    return readers, waits
