"""Simulates a schedule: durations and links in, a timeline out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np

from ...common.errors import PlanError
from .check import checked_rows, refuse_deadlock
from .costs import Links, StageCosts, shares
from .dependencies import Floats
from .event_graph import Graph, graph_of
from .longest_paths import Levels, levels_of, longest, longest_path
from .memory import buffers, memory_of
from .table import Schedule
from .task import Kind
from .task_rows import Ints, Rows
from .timeline import Timeline


@final
class Simulator:
    """Simulates one checked schedule with any costs.

    Checking and ordering the tasks takes most of the time of a simulation and depends on the
    schedule alone; keep one simulator to run many costs.
    """

    def __init__(self, schedule: Schedule) -> None:
        """Checks the schedule.

        Raises:
            PlanError: if it cannot run; see `check`.
        """
        self.schedule = schedule
        self._rows = checked_rows(schedule)
        self._graphs: dict[tuple[bool, bool], tuple[Graph, Levels]] = {}

    def run(self, costs: StageCosts, links: Links | None = None) -> Timeline:
        """Times and memory of one step.

        Args:
            costs: of every stage.
            links: between devices; transfers are free if None.

        Raises:
            PlanError: if the costs are of another number of stages, or the tasks deadlock.
        """
        graph, levels = self._graph(links)
        duration_s, size_bytes = self._durations(graph, costs, links)
        start_s = longest(levels, duration_s)
        return _timeline(graph, costs, links, start_s, duration_s, size_bytes)

    def step_s(self, costs: StageCosts, links: Links | None = None) -> float:
        """Seconds of one step; memory is not simulated."""
        graph, levels = self._graph(links)
        duration_s, _ = self._durations(graph, costs, links)
        return float((longest(levels, duration_s) + duration_s).max(initial=0.0))

    def steps_s(self, seconds: Mapping[Kind, Floats], into_s: Floats) -> Floats:
        """Seconds of one step in each of several cases, [case]; memory is not simulated.

        Micro-batches are not sliced.

        Args:
            seconds: kind of task -> its seconds on every stage, [stage, case]; 0 for others.
            into_s: seconds of a transfer into each stage, or of its gradient back, [stage, case].

        Raises:
            PlanError: if the tasks deadlock.
        """
        levels, duration_s, _, _ = self._cases(seconds, into_s)
        return (longest(levels, duration_s) + duration_s).max(axis=0, initial=0.0)

    def paths(
        self, seconds: Mapping[Kind, Floats], into_s: Floats
    ) -> tuple[Floats, dict[Kind, Floats], Floats]:
        """Longest paths of several cases; arguments as of `steps_s`.

        Returns:
            Seconds of the step, [case]; kind -> tasks of every stage on the path, [stage, case];
            and transfers into every stage, or of its gradient back.
        """
        levels, duration_s, stages, receivers = self._cases(seconds, into_s)
        step_s, on_path = longest_path(levels, duration_s)
        counts = dict[Kind, Floats]()
        for kind in seconds:
            counts[kind] = np.zeros_like(into_s)
            tasks = self._rows.select(kind)
            np.add.at(counts[kind], stages[tasks], on_path[tasks])
        moved = np.zeros_like(into_s)
        at = len(stages)
        np.add.at(moved, receivers, on_path[at : at + len(receivers)])
        return step_s, counts, moved

    def _cases(
        self, seconds: Mapping[Kind, Floats], into_s: Floats
    ) -> tuple[Levels, Floats, Ints, Ints]:
        """Levels, durations, the stage of each task, and that into which each transfer goes.

        Arguments as of `steps_s`; a gradient goes out of the stage.
        """
        graph, levels = self._graph(Links())
        rows, moved = self._rows, graph.transfers
        stages = np.array(self.schedule.placement.stage)[rows.chunk]
        duration_s = np.zeros((graph.size, into_s.shape[1]))
        for kind, each_s in seconds.items():
            tasks = rows.select(kind)
            duration_s[tasks] = each_s[stages[tasks]]
        receivers = stages[np.where(moved.is_gradient, moved.source, moved.target)]
        at = slice(len(rows.kind), len(rows.kind) + len(receivers))
        duration_s[at] = into_s[receivers]
        return levels, duration_s, stages, receivers

    def _graph(self, links: Links | None) -> tuple[Graph, Levels]:
        key = (links is not None, links is None or links.overlap)
        if key not in self._graphs:
            graph = graph_of(self._rows, links=key[0], overlap=key[1])
            levels, stuck = levels_of(graph)
            if len(stuck):
                refuse_deadlock(graph, stuck)
            self._graphs[key] = graph, levels
        return self._graphs[key]

    def _durations(
        self, graph: Graph, costs: StageCosts, links: Links | None
    ) -> tuple[Floats, Floats]:
        stages = self.schedule.placement.stages
        if costs.stages != stages:
            raise PlanError(
                f"are of {costs.stages} stages, the schedule has {stages}", kind="bad-costs",
                where="costs", remedy="give costs for every stage",
            )  # fmt: skip
        duration_s = np.zeros(graph.size)
        rows = self._rows
        duration_s[: len(rows.kind)] = task_s(rows, costs)
        moved = graph.transfers
        if links is None:
            return duration_s, np.zeros(len(moved.source))
        size_bytes = transfer_bytes(rows, costs, moved.source, moved.target, moved.is_gradient)
        ends = (rows.device[moved.source], rows.device[moved.target])
        at = slice(len(rows.kind), len(rows.kind) + len(moved.source))
        duration_s[at] = links.transfer_s(*ends, size_bytes)
        return duration_s, size_bytes


def simulate(schedule: Schedule, costs: StageCosts, links: Links | None = None) -> Timeline:
    """Times, memory and idle time of one step of a schedule.

    Args:
        schedule: from `build`, a file, or a search.
        costs: of every stage, in model order.
        links: between devices; transfers are free if None.

    Raises:
        PlanError: if the schedule cannot run or the costs do not fit it.
    """
    return Simulator(schedule).run(costs, links)


def task_s(rows: Rows, costs: StageCosts) -> Floats:
    """Duration of every task [s]; sends and receives take none of their own."""
    stage = np.array(rows.schedule.placement.stage)[rows.chunk]
    nothing = (0.0,) * costs.stages
    by_kind = {
        Kind.FORWARD: costs.forward_s, Kind.BACKWARD: costs.backward_s,
        Kind.INPUT_GRADIENT: costs.input_gradient_s, Kind.WEIGHT_GRADIENT: costs.weight_gradient_s,
        Kind.RECOMPUTE: costs.recompute_s, Kind.SYNC: costs.sync_s,
        Kind.OPTIMIZER: costs.optimizer_s, Kind.OFFLOAD: costs.offload_s, Kind.FETCH: costs.fetch_s,
    }  # fmt: skip
    table = np.array([by_kind.get(kind, nothing) for kind in Kind])
    seconds = table[rows.kind, stage]
    sliced = ~np.isin(rows.kind, (Kind.SYNC, Kind.OPTIMIZER))
    share = np.array(shares(costs, rows.schedule.slices))
    seconds[sliced] *= share[rows.part[sliced]]
    syncs = rows.select(Kind.SYNC)
    if len(syncs):
        seconds[syncs] /= _sync_parts(rows, syncs)
    return seconds


def _sync_parts(rows: Rows, syncs: Ints) -> Ints:
    """Number of parts of the gradient of each of these tasks."""
    shape = (rows.schedule.placement.chunks, int(rows.microbatch[syncs].max()) + 1)
    parts = np.zeros(shape, np.int64)
    np.maximum.at(parts, (rows.chunk[syncs], rows.microbatch[syncs]), rows.part[syncs] + 1)
    return parts[rows.chunk[syncs], rows.microbatch[syncs]]


def transfer_bytes(
    rows: Rows, costs: StageCosts, source: Ints, target: Ints, is_gradient: np.ndarray
) -> Floats:
    """Bytes of every transfer: the activations of the stage upstream, or their gradient."""
    upstream = np.where(is_gradient, target, source)
    stage = np.array(rows.schedule.placement.stage)[rows.chunk[upstream]]
    share = np.array(shares(costs, rows.schedule.slices))
    return np.array(costs.output_bytes)[stage] * share[rows.part[upstream]]


def _timeline(
    graph: Graph,
    costs: StageCosts,
    links: Links | None,
    start_s: Floats,
    duration_s: Floats,
    size_bytes: Floats,
) -> Timeline:
    rows, count = graph.rows, len(graph.rows.kind)
    begin, end = start_s[:count], start_s[:count] + duration_s[:count]
    moved = []
    if links is not None and size_bytes.any():
        at = slice(count, count + len(size_bytes))
        node_s = (start_s[at], start_s[at] + duration_s[at])
        moved = buffers(rows, graph.transfers, size_bytes, node_s, begin, end)
    memory = memory_of(rows, costs, begin, end, moved)
    return Timeline(graph, start_s, duration_s, memory, size_bytes)
