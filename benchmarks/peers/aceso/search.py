"""Stages of ops, devices, degrees and recomputation together, under Aceso's cost.

Stages of every range of ops are priced at once, recomputation by the levels of `patterns`. A table
over (stages, devices, first op) is filled twice: for the smallest slowest stage, then, that one
limited to slightly more, for the smallest sum. The stages found are priced exactly again, each with
the fewest layers at the higher level that fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.pipeline.published.readers.aceso import HEAD, LAYER, MB, STATE_OVER_WEIGHTS, Database

from .cost import (
    BACKWARD,
    FORWARD,
    INPUT,
    OUTPUT,
    RESERVED_B,
    RESERVED_F,
    WEIGHTS,
    OpPlan,
    OpStage,
    kept_bytes,
    price_ops,
    stage_bytes,
    transfer_s,
)
from .patterns import Levels, families

Floats = npt.NDArray[np.float64]
MOST_STAGES = 16
LOOSER = (1.0, 1.002, 1.005, 1.01, 1.03)


@dataclass(frozen=True, slots=True)
class Shape:
    """Degrees of a stage, and its numbers for every first op and length, [ops, lengths].

    seconds: without transfers, by stages behind.
    enter_s, leave_s: transfers inside a host and between hosts, [2, ops].
    """

    data_parallel: int
    tensor_parallel: int
    seconds: list[Floats]
    enter_s: Floats
    leave_s: Floats

    @property
    def devices(self) -> int:
        """How many it takes."""
        return self.data_parallel * self.tensor_parallel


def search_ops(
    database: Database, *, devices: int, devices_per_host: int, memory_bytes: float, batch: int
) -> OpPlan | None:
    """The best plan found over all micro-batches; None if nothing fits."""
    best: tuple[float, OpPlan] | None = None
    measured = sorted({b for b, _ in database.table})
    size = 1
    while size <= measured[-1] * devices and size <= batch:
        if batch % size == 0:
            search = _Search(database, devices, devices_per_host, memory_bytes, batch, size)
            for plan in search.plans(best[0] if best else np.inf):
                cost = price_ops(database, plan, batch=batch, devices_per_host=devices_per_host)
                if max(cost.peak_bytes) < memory_bytes and (best is None or cost.step_s < best[0]):
                    best = cost.step_s, plan
        size *= 2
    return None if best is None else best[1]


class _Search:
    def __init__(
        self, database: Database, devices: int, per_host: int, memory_bytes: float, batch: int,
        microbatch: int,
    ) -> None:  # fmt: skip
        self.database, self.devices, self.per_host = database, devices, per_host
        self.memory_bytes, self.microbatch = memory_bytes, microbatch
        self.rounds = batch // microbatch
        self.count = len(database.ops)
        self.most = min(devices, MOST_STAGES)
        self.levels: dict[tuple[int, int], list[Levels]] = {}
        self.shapes = [
            self._shape(d, t)
            for t in sorted({t for _, t in database.table})
            for d in (1, 2, 4, 8, 16, 32)
            if microbatch % d == 0 and (microbatch // d, t) in database.table
            and d * t <= min(devices, per_host)
        ]  # fmt: skip

    def _shape(self, d: int, t: int) -> Shape:
        table = self.database.table[self.microbatch // d, t]
        width = min(self.count, -(-self.count * d * t * 2 // self.devices) + LAYER)
        rates = (self.database.intra_bytes_per_s, self.database.inter_bytes_per_s)
        enter = np.stack([transfer_s(table[INPUT], rate) for rate in rates])
        leave = np.stack([transfer_s(table[OUTPUT], rate) for rate in rates])
        found = self.levels.setdefault((d, t), families(self.database, table))
        sums = _Ranges(self.database, table, width)
        behind = range(self.most)
        seconds: list[Floats] = [sums.seconds(found, y, self.memory_bytes) for y in behind]
        return Shape(d, t, seconds, enter, leave)

    def plans(self, below_s: float) -> list[OpPlan]:
        """Plans for several limits on the slowest stage; none if they cannot be below."""
        slowest = self._fill(np.inf, add=False)
        if slowest is None:
            return []
        limit = slowest[0]
        if (self.rounds - 1) * limit >= below_s:
            return []
        found: list[OpPlan] = []
        for factor in LOOSER:
            filled = self._fill(limit * factor * (1 + 1e-12), add=True)
            if filled is not None:
                found.append(self._plan(filled[1]))
        return found

    def _fill(
        self, limit: float, *, add: bool
    ) -> tuple[float, list[tuple[int, int, Shape]]] | None:
        """The table from the last stage to the first, and the best entry's stages."""
        n, devices = self.count, self.devices
        table = np.full((self.most + 1, devices + 1, n + 1), np.inf)
        table[0, 0, n] = 0.0
        choice = np.full((self.most + 1, devices + 1, n + 1, 2), -1, dtype=np.int32)
        for s in range(self.most):
            for k in range(devices):
                row = table[s, k]
                if not np.isfinite(row).any():
                    continue
                for index, shape in enumerate(self.shapes):
                    if k + shape.devices <= devices:
                        self._step(table, choice, s, k, index, limit, add=add)
        ends = table[:, devices, 0]
        s = int(ends.argmin())
        if not np.isfinite(ends[s]):
            return None
        return float(ends[s]), self._trace(choice, s)

    def _step(
        self, table: Floats, choice: npt.NDArray[np.int32], s: int, k: int, index: int,
        limit: float, *, add: bool,
    ) -> None:  # fmt: skip
        shape = self.shapes[index]
        core = shape.seconds[s]
        n, width = self.count, int(core.shape[1])
        crosses_out = (self.devices - k) % self.per_host == 0
        before = self.devices - k - shape.devices
        crosses_in = before % self.per_host == 0 and before > 0
        # Column l of row i is the stage of ops i..i+l, followed by the rest from i + l + 1.
        tail = table[s, k]
        reached = np.flatnonzero(np.isfinite(tail))
        low, high = int(reached[0]), int(reached[-1])
        first = max(0, low - width)
        rows = slice(first, high)
        ends = np.minimum(np.arange(first, high)[:, None] + 1 + np.arange(width), n)
        rest = tail[ends]
        leaving: Floats = np.append(shape.leave_s[int(crosses_out)], 0.0)
        stage = core[rows] + shape.enter_s[int(crosses_in), rows][:, None] + leaving[ends - 1]
        with np.errstate(invalid="ignore"):
            total = np.where(
                stage <= limit, stage + rest if add else np.maximum(stage, rest), np.inf
            )
        best = total.argmin(axis=1)
        values = total[np.arange(len(best)), best]
        old = table[s + 1, k + shape.devices, rows]
        better = values < old
        old[better] = values[better]
        picked = choice[s + 1, k + shape.devices, rows]
        picked[better, 0] = index
        picked[better, 1] = best[better] + 1

    def _trace(self, choice: npt.NDArray[np.int32], s: int) -> list[tuple[int, int, Shape]]:
        at, k = 0, self.devices
        found: list[tuple[int, int, Shape]] = []
        while s:
            index, length = (int(v) for v in choice[s, k, at])
            shape = self.shapes[index]
            found.append((at, at + length, shape))
            at, k, s = at + length, k - shape.devices, s - 1
        return found

    def _plan(self, stages: list[tuple[int, int, Shape]]) -> OpPlan:
        done = [
            self._exact(first, last, shape, len(stages) - 1 - index)
            for index, (first, last, shape) in enumerate(stages)
        ]
        return OpPlan(tuple(done), self.microbatch)

    def _exact(self, first: int, last: int, shape: Shape, behind: int) -> OpStage:
        """The cheapest recomputation of a stage that fits by the exact formula."""
        d, t = shape.data_parallel, shape.tensor_parallel
        table = self.database.table[self.microbatch // d, t]
        plain = OpStage(first, last, d, t, (False,) * (last - first))
        if stage_bytes(self.database, table, plain, behind) < self.memory_bytes:
            return plain
        best: tuple[float, OpStage] | None = None
        for levels in self.levels[d, t]:
            for a in range(len(levels.flags) - 1):
                stage = self._mixed(levels, a, plain, table, behind)
                if stage is not None:
                    again = np.array(stage.again)
                    extra = float(table[FORWARD, first:last][again].sum())
                    if best is None or extra < best[0]:
                        best = extra, stage
        return plain if best is None else best[1]

    def _mixed(
        self, levels: Levels, a: int, plain: OpStage, table: Floats, behind: int
    ) -> OpStage | None:
        """The fewest layers at level a + 1, the others at a."""
        low, high = 0, self.database.layers

        def at(count: int) -> OpStage:
            flags = np.zeros(self.count, dtype=bool)
            begin = max(0, (plain.first - HEAD) // LAYER)
            for layer in range(self.database.layers):
                level = a + (begin <= layer < begin + count)
                place = HEAD + layer * LAYER
                flags[place : place + LAYER] = levels.flags[level]
            again = tuple(bool(x) for x in flags[plain.first : plain.last])
            return OpStage(plain.first, plain.last, plain.data_parallel,
                           plain.tensor_parallel, again)  # fmt: skip

        if stage_bytes(self.database, table, at(high), behind) >= self.memory_bytes:
            return None
        while low < high:
            middle = (low + high) // 2
            if stage_bytes(self.database, table, at(middle), behind) < self.memory_bytes:
                high = middle
            else:
                low = middle + 1
        return at(low)


class _Ranges:
    """Sums over ops [i, i + l] for every i and l."""

    def __init__(self, database: Database, table: Floats, width: int) -> None:
        n = len(database.ops)
        self.database, self.table, self.width = database, table, width
        self.first = np.arange(n)[:, None]
        self.last = self.first + 1 + np.arange(width)
        self.inside = self.last <= n
        self.end = np.minimum(self.last, n)
        self.kept = kept_bytes(database, table)
        weights = self.sum(table[WEIGHTS])
        reserved = self.most(table[RESERVED_F]) + self.most(table[RESERVED_B])
        self.fixed = STATE_OVER_WEIGHTS * weights + np.maximum(reserved, weights)
        self.held = table[INPUT][:, None] + self.sum(self.kept)
        self.plain = self.sum(table[FORWARD] + table[BACKWARD])

    def sum(self, row: Floats) -> Floats:
        """Of a row over each range."""
        total = np.concatenate([[0.0], np.cumsum(row)])
        return total[self.end] - total[self.first]

    def most(self, row: Floats) -> Floats:
        """Largest of a row over each range but its last op."""
        found = np.zeros(self.end.shape)
        padded = np.concatenate([row, np.zeros(self.width)])
        for length in range(1, self.width):
            found[:, length] = np.maximum(
                found[:, length - 1], padded[self.first[:, 0] + length - 1]
            )
        return found

    def seconds(self, found: list[Levels], behind: int, memory_bytes: float) -> Floats:
        """Forward, backward and the least recomputation that fits; infinite where none does."""
        need = self.fixed + self.held * (behind + 1) - (memory_bytes - MB)
        best = np.where(need <= 0, 0.0, np.inf)
        layers = np.maximum(1.0, np.round((self.end - self.first) / LAYER))
        for levels in found:
            sums = [self._level(flags) for flags in levels.flags]
            for a in range(len(sums) - 1):
                (saved, extra), (more, dearer) = sums[a], sums[a + 1]
                short = need + levels.peaks[a + 1] - (behind + 1) * saved
                step = (behind + 1) * (more - saved)
                part = np.where(step > 0, short / np.where(step > 0, step, 1.0), np.inf)
                whole = np.ceil(np.maximum(part, 0.0) * layers - 1e-9) / layers
                cost = extra + np.minimum(whole, 1.0) * (dearer - extra)
                best = np.minimum(best, np.where(part <= 1, cost, np.inf))
        return np.where(self.inside, self.plain + best, np.inf)

    def _level(self, flags: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
        n = len(self.database.ops)
        all_flags = np.zeros(n, dtype=bool)
        layers = self.database.layers
        all_flags[HEAD : HEAD + LAYER * layers] = np.tile(flags, layers)
        border = np.zeros(n, dtype=bool)
        border[HEAD + LAYER - 1 : HEAD + LAYER * layers : LAYER] = True
        both = all_flags & np.append(all_flags[1:], False) & ~border
        saved_row = np.where(both, self.kept, 0.0)
        # The last op of a range saves nothing: its successor runs elsewhere.
        saved = self.sum(saved_row) - saved_row[self.end - 1]
        return saved, self.sum(np.where(all_flags, self.table[FORWARD], 0.0))
