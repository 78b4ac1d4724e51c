"""Exact search by labels: stages are put in front of each other, dominated beginnings dropped.

A state is a suffix set of layers on the last k devices. Its labels are the count in flight and the
convention's numbers; a label that is no better anywhere than another of its state leads to no
better plan. With that the search is exact for every convention, heterogeneous devices included,
since the devices of a stage are known from k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...solver.numba_jit import compiled
from .convention import Convention, StageTerms
from .device_runs import Mix, Runs
from .machine import Machine
from .problem import PipelinePlan, Stage
from .stage_space import Space
from .stage_tables import Tables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Beyond this many devices only powers of two and multiples of a 32nd are tried.
EVERY_COUNT = 64
SLACK = 1 + 1e-12


@dataclass(slots=True)
class Store:
    """Labels that are kept, by number of devices: arrays that grow together."""

    sets: Ints
    labels: Floats
    ids: Ints


def widths(devices: int) -> list[int]:
    """Device counts that a stage may have."""
    if devices <= EVERY_COUNT:
        return list(range(1, devices + 1))
    unit = devices // 32
    powers = {1 << i for i in range(devices.bit_length())}
    return sorted({w for w in powers | set(range(unit, devices + 1, unit)) if w <= devices})


def search_labels(
    tables: Tables, machine: Machine, space: Space, *, below_s: float = np.inf
) -> PipelinePlan | None:
    """The best plan of a space on a machine's devices, in their order.

    Args:
        tables: sums over stages, with the convention.
        machine: devices in order; stages take them from the last to the first.
        space: limits.
        below_s: only plans of at most this many seconds a step are of interest.
    """
    return _Search(tables, machine, space, below_s).run()


class _Search:
    def __init__(self, tables: Tables, machine: Machine, space: Space, below_s: float) -> None:
        self.tables, self.machine, self.space, self.below_s = tables, machine, space, below_s
        self.convention: Convention = tables.convention
        self.microbatches = tables.problem.microbatches
        self.samples = tables.problem.batch // self.microbatches
        self.devices = machine.devices
        self.widths = [w for w in widths(self.devices) if space.counts(w)]
        layers = len(tables.graph.layers)
        deepest = min(self.devices, layers, space.stages or layers)
        most = self.devices if self.convention.by_replicas else deepest
        self.runs = Runs(tables, machine, most)
        # Of every label ever kept: (pair, replicas, degree, in flight, devices after it, parent).
        self.trace: list[tuple[int, int, int, int, int, int]] = [(-1, 0, 0, 0, 0, -1)]
        start = np.array([[0.0, *self.convention.start, 0.0]])
        empty = Store(np.zeros(0, dtype=np.int64), np.zeros((0, start.shape[1])),
                      np.zeros(0, dtype=np.int64))  # fmt: skip
        self.store = [empty for _ in range(self.devices + 1)]
        self.store[0] = Store(np.zeros(1, dtype=np.int64), start, np.zeros(1, dtype=np.int64))

    def run(self) -> PipelinePlan | None:
        sets = len(self.tables.lattice.member)
        best: tuple[float, int] | None = None
        for outer in range(1, sets):
            kept: list[tuple[int, Floats, Ints]] = []
            last = outer == sets - 1
            for used in range(1, self.devices + 1):
                if last and self.space.all_devices and used != self.devices:
                    continue
                if (found := self._state(outer, used)) is not None:
                    kept.append((used, *found))
            for used, labels, ids in kept:
                self._keep(outer, used, labels, ids)
            if last:
                best = self._best(kept)
        return None if best is None else self._plan(best[1])

    def _best(self, kept: list[tuple[int, Floats, Ints]]) -> tuple[float, int] | None:
        found: list[tuple[float, int]] = []
        for _, labels, ids in kept:
            values = self.convention.value(labels[:, 1:-1], self.microbatches)
            at = int(values.argmin())
            found.append((float(values[at]), int(ids[at])))
        return min(found, default=None)

    def _keep(self, outer: int, used: int, labels: Floats, ids: Ints) -> None:
        old = self.store[used]
        where = np.full(len(ids), outer, dtype=np.int64)
        self.store[used] = Store(
            np.concatenate([old.sets, where]), np.concatenate([old.labels, labels]),
            np.concatenate([old.ids, ids]),
        )  # fmt: skip

    def _state(self, outer: int, used: int) -> tuple[Floats, Ints] | None:
        """Labels of a suffix set on the last `used` devices, dominated ones dropped."""
        labels: list[Floats] = []
        traces: list[Ints] = []
        for width in self.widths:
            if width > used or not len(self.store[used - width].sets):
                continue
            for degree in self.tables.degrees:
                replicas = width // degree
                if width % degree or not self._may(replicas):
                    continue
                found = self._put(outer, used, replicas, degree)
                if found is not None:
                    labels.append(found[0])
                    traces.append(found[1])
        if not labels:
            return None
        joined, trace = np.concatenate(labels), np.concatenate(traces)
        # the number of stages counts only where it is limited
        front = pareto(joined, joined.shape[1] - (self.space.stages is None))
        ids = np.arange(len(front)) + len(self.trace)
        self.trace.extend(tuple(row) for row in trace[front].tolist())
        return joined[front], ids

    def _may(self, replicas: int) -> bool:
        if replicas > 1 and not self.space.data:
            return False
        if not self.convention.by_replicas and replicas > self.samples:
            return False
        if self.space.replicas is not None and replicas != self.space.replicas:
            return False
        return not self.convention.divides or self.microbatches % replicas == 0

    def _put(self, outer: int, used: int, replicas: int, degree: int) -> tuple[Floats, Ints] | None:
        """All labels on fewer devices with a stage of this shape in front."""
        width = replicas * degree
        first = self.devices - used
        mix = self.runs.mix(first, replicas, degree)
        if mix is None:
            return None
        store = self.store[used - width]
        pairs = self.tables.lattice.pair[outer, store.sets]
        rows = pairs >= 0
        if self.space.stages is not None:
            rows &= store.labels[:, -1] < self.space.stages
        if not rows.any():
            return None
        pairs, before, ids = pairs[rows], store.labels[rows], store.ids[rows]
        held = before[:, 0] + self.convention.adds(replicas)
        if self.convention.divides and self.convention.by_replicas:
            held = np.where(held > self.microbatches, np.inf, held)
        flight = np.ceil(held / replicas) if self.convention.by_replicas else held
        flight = np.minimum(flight, self.microbatches)
        timed = self.runs.timed(mix, degree)
        possible = flight <= self.runs.most
        y = np.where(possible, flight, 1).astype(np.int64)
        possible &= np.isfinite(timed.forward_s[pairs, y - 1])
        pairs, ids, y = pairs[possible], ids[possible], y[possible]
        before, held = before[possible], held[possible]
        cost = self._cost(mix, degree, first, pairs, y)
        grown = self.convention.extend(before[:, 1:-1], cost, self.microbatches)
        near = self.convention.bound(grown, self.microbatches) <= self.below_s * SLACK
        if not near.any():
            return None
        labels = np.concatenate([held[:, None], grown, before[:, -1:] + 1], axis=1)[near]
        count = len(labels)
        trace = np.stack(
            [
                pairs[near], np.full(count, replicas), np.full(count, degree), y[near],
                np.full(count, used), ids[near],
            ],
            axis=1,
        )  # fmt: skip
        return labels, trace

    def _cost(self, mix: Mix, degree: int, first: int, pairs: Ints, y: Ints) -> StageTerms:
        timed = self.runs.timed(mix, degree)
        rest = self.runs.rest(mix, degree, first)
        return replace(
            rest, forward_s=timed.forward_s[pairs, y - 1],
            backward_s=timed.backward_s[pairs, y - 1],
            edge_bytes=rest.edge_bytes[pairs], enter_s=rest.enter_s[pairs],
            leave_s=rest.leave_s[pairs], sync_s=rest.sync_s[pairs], late_s=rest.late_s[pairs],
            weight_bytes=rest.weight_bytes[pairs],
        )  # fmt: skip

    def _plan(self, label: int) -> PipelinePlan:
        stages: list[Stage] = []
        while label > 0:
            pair, replicas, degree, flight, used, label = self.trace[label]
            stages.append(self.runs.stage(pair, self.devices - used, replicas, degree, flight))
        complete = self.devices <= EVERY_COUNT and self.tables.exact
        return PipelinePlan(tuple(stages), self.machine, self.microbatches, complete)


def pareto(labels: Floats, columns: int | None = None) -> Ints:
    """Rows that no other row beats or equals in every column; of equal rows the first.

    Args:
        labels: the rows.
        columns: that count; those behind only say which of equal rows is first. All if None.
    """
    order = np.lexsort(labels.T[::-1])
    count = labels.shape[1] if columns is None else columns
    return order[_front(np.ascontiguousarray(labels[order, :count]))]


@compiled
def _front(rows: Floats) -> Ints:
    """Places of rows, in rising order, that none before them beats or equals."""
    kept = np.empty(len(rows), dtype=np.int64)
    count = 0
    for i in range(len(rows)):
        beaten = False
        for k in range(count):
            beaten = True
            for c in range(rows.shape[1]):
                if rows[kept[k], c] > rows[i, c]:
                    beaten = False
                    break
            if beaten:
                break
        if not beaten:
            kept[count] = i
            count += 1
    return kept[:count].copy()
