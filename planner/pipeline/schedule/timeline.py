"""Result of a simulation: times of all tasks, memory of each device, idle time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from .dependencies import Floats
from .event_graph import Graph
from .table import Schedule
from .task import COMPUTE, Task
from .task_rows import Ints, Rows


@final
@dataclass(frozen=True, slots=True)
class Link:
    """A step of the critical path.

    what: the task, or None for a transfer or a wait for a gradient sum.
    devices: where it ran, for a transfer from and to.
    """

    what: Task | None
    devices: tuple[int, ...]
    start_s: float
    seconds: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """Memory of one device over time: from `time_s[i]` on it holds `held_bytes[i]`."""

    time_s: Floats
    held_bytes: Floats

    @property
    def peak_bytes(self) -> float:
        """Peak memory [byte]."""
        return float(self.held_bytes.max(initial=0.0))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """Transfers between devices, one entry each.

    source, target: rows of the tasks that produce and need the data.
    """

    source: Ints
    target: Ints
    from_device: Ints
    to_device: Ints
    start_s: Floats
    end_s: Floats
    size_bytes: Floats


@final
@dataclass(frozen=True, eq=False)
class Timeline:
    """The simulation of one step of a schedule.

    start_s, end_s: of every task, in the order of the tables, device after device.
    """

    graph: Graph
    node_start_s: Floats
    node_duration_s: Floats
    memory: tuple[MemoryCurve, ...]
    transfer_bytes: Floats

    @property
    def rows(self) -> Rows:
        """Tasks as columns; row i ran from `start_s[i]` to `end_s[i]`."""
        return self.graph.rows

    @property
    def schedule(self) -> Schedule:
        """The simulated schedule."""
        return self.graph.rows.schedule

    @property
    def start_s(self) -> Floats:
        """Start of every task."""
        return self.node_start_s[: len(self.rows.kind)]

    @property
    def end_s(self) -> Floats:
        """End of every task."""
        count = len(self.rows.kind)
        return self.node_start_s[:count] + self.node_duration_s[:count]

    @cached_property
    def step_s(self) -> float:
        """Seconds from the first start to the last end, transfers and updates included."""
        return float((self.node_start_s + self.node_duration_s).max(initial=0.0))

    @cached_property
    def period_s(self) -> float:
        """Step time of many steps in a row, if nothing waits for all devices between them.

        Each device then begins its next step as soon as it has ended this one: the longest time
        that any device is in use, from its first task to its last.
        """
        return float(max((end - start for start, end in self._spans), default=0.0))

    @cached_property
    def _spans(self) -> list[tuple[float, float]]:
        first = self.rows.first
        spans: list[tuple[float, float]] = []
        for a, b in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
            if b > a:
                spans.append((float(self.start_s[a:b].min()), float(self.end_s[a:b].max())))
        return spans

    @cached_property
    def busy_s(self) -> Floats:
        """Compute seconds of every device."""
        compute = np.isin(self.rows.kind, COMPUTE)
        spent = np.where(compute, self.node_duration_s[: len(compute)], 0.0)
        total = np.zeros(self.schedule.devices)
        np.add.at(total, self.rows.device, spent)
        return total

    @property
    def bubble(self) -> float:
        """Share of the devices' time in the step in which they do not compute."""
        whole = self.step_s * self.schedule.devices
        return 1.0 - float(self.busy_s.sum()) / whole if whole > 0 else 0.0

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """Peak memory of every device."""
        return tuple(curve.peak_bytes for curve in self.memory)

    def device(self, device: int) -> tuple[tuple[Task, ...], Floats, Floats]:
        """Tasks of a device with their starts and ends."""
        a, b = (int(row) for row in self.rows.first[device : device + 2])
        return tuple(self.schedule.tasks(device)), self.start_s[a:b], self.end_s[a:b]

    @cached_property
    def transfers(self) -> Moved:
        """Every transfer; those without a link of their own take no time."""
        moved, count = self.graph.transfers, len(self.rows.kind)
        if self.graph.size >= count + len(moved.source) and len(self.transfer_bytes):
            start = self.node_start_s[count : count + len(moved.source)]
            end = start + self.node_duration_s[count : count + len(moved.source)]
        else:
            start = end = self.end_s[moved.source]
        ends = (self.rows.device[moved.source], self.rows.device[moved.target])
        return Moved(moved.source, moved.target, *ends, start, end, self.transfer_bytes)

    def critical_path(self) -> tuple[Link, ...]:
        """A chain of tasks and transfers without a gap that is as long as the step, in order."""
        links = (self._link(node, until) for node, until in self._critical())
        return tuple(link for link in links if link.seconds > 0)

    def critical_nodes(self) -> list[tuple[int, float]]:
        """Nodes of the graph on the critical path, each with the share of its time there."""
        start, spent = self.node_start_s, self.node_duration_s
        return [
            (node, (until - float(start[node])) / float(spent[node]))
            for node, until in self._critical() if spent[node] > 0
        ]  # fmt: skip

    def _critical(self) -> list[tuple[int, float]]:
        """Nodes of the critical path, in order, each with the time until which it is there."""
        start, spent, before = self.node_start_s, self.node_duration_s, self._last_before()
        node = int(np.argmax(start + spent))
        until = float(start[node] + spent[node])
        path: list[tuple[int, float]] = []
        while True:
            path.append((node, until))
            until = float(start[node])
            if before[node] < 0 or until <= 0.0:
                return path[::-1]
            node = int(before[node])

    def _last_before(self) -> NDArray[np.int64]:
        """For each node, the one before it that lets it begin last, the first of equals; or -1."""
        graph, start, spent = self.graph, self.node_start_s, self.node_duration_s
        found = np.full(graph.size, -1, dtype=np.int64)
        into = np.argsort(graph.after, kind="stable")
        edges = np.bincount(graph.after, minlength=graph.size)
        nodes, count = np.flatnonzero(edges), edges[edges > 0]
        if len(nodes):
            before = graph.before[into]
            reach = start[before] + spent[before] * graph.share[into]
            most = np.maximum.reduceat(reach, np.cumsum(count) - count)
            last = np.flatnonzero(reach == np.repeat(most, count))[::-1]
            found[graph.after[into][last]] = before[last]  # the first of a node is set last
        return found

    def critical_shares(self) -> list[tuple[str, int, float]]:
        """Kinds of links of the critical path: (kind on device, number, seconds), longest first.

        Transfers are named by the devices at their ends.
        """
        found: dict[str, tuple[int, float]] = {}
        for link in self.critical_path():
            where = " to ".join(map(str, link.devices))
            kind = (
                "transfer from device" if link.what is None else f"{link.what.kind.word} on device"
            )
            count, seconds = found.get(f"{kind} {where}", (0, 0.0))
            found[f"{kind} {where}"] = count + 1, seconds + link.seconds
        rows = [(what, count, seconds) for what, (count, seconds) in found.items()]
        return sorted(rows, key=lambda row: (-row[2], row[0]))

    def _link(self, node: int, until: float) -> Link:
        start, count = float(self.node_start_s[node]), len(self.rows.kind)
        if node < count:
            device = (int(self.rows.device[node]),)
            return Link(self.rows.task(node), device, start, until - start)
        moved = self.graph.transfers
        ends: tuple[int, ...] = ()
        if node < count + len(moved.source):
            rows = (moved.source[node - count], moved.target[node - count])
            ends = tuple(int(self.rows.device[row]) for row in rows)
        return Link(None, ends, start, until - start)


def curve(time_s: Floats, change_bytes: Floats, held_bytes: float) -> MemoryCurve:
    """The memory curve of changes; releases at a moment come before allocations.

    Args:
        time_s: time of each change.
        change_bytes: bytes allocated (positive) or released.
        held_bytes: memory before all changes.
    """
    order = np.lexsort((change_bytes, time_s))
    moments: NDArray[np.float64] = np.concatenate(([0.0], time_s[order]))
    held = np.concatenate(([held_bytes], held_bytes + np.cumsum(change_bytes[order])))
    return MemoryCurve(moments, held)
