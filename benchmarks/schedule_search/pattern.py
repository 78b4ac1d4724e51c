"""Repeating patterns: one round of micro-batches, started again every period.

A pattern gives each block of a round an offset; block b of round r starts at offset_b + r P. It is
sound if

    offset_b' >= offset_b + seconds_b + transfer        b' reads what b makes
    the blocks of one device, taken modulo P, do not overlap.

Activations in flight follow from the offsets: P is free to be small as long as memory allows many
rounds at once.

Source: Lin et al., Tessel, HPCA 2024; Rau, Iterative modulo scheduling, 1996.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from planner.pipeline.schedule import Schedule, table_of
from planner.pipeline.schedule.round import TOLERANCE, Round
from planner.pipeline.schedule.table import Table


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """Offsets of the blocks of a round, and the period."""

    round: Round
    period_s: float
    offset_s: tuple[float, ...]

    @property
    def span_s(self) -> float:
        """From the first start of a round to its last end."""
        ends = [o + b.seconds for o, b in zip(self.offset_s, self.round.blocks, strict=True)]
        return max(ends) - min(self.offset_s)

    def step_s(self, microbatches: int) -> float:
        """Time of a step that keeps to the period from the first round to the last."""
        each = self.round.copies * len(self.round.placement.routes)
        return (-(-microbatches // each) - 1) * self.period_s + self.span_s

    def held_bytes(self) -> tuple[float, ...]:
        """Most activations in the steady state on every device."""
        r, p = self.round, self.period_s
        most = [0.0] * r.placement.devices
        starts = {(first, device) for first, _, device, _ in r.hold}
        for first, device in sorted(starts):
            now = self.offset_s[first]
            held = 0.0
            for a, b, where, size in r.hold:
                if where == device:
                    begun = np.floor((now - self.offset_s[a]) / p + TOLERANCE)
                    end = self.offset_s[b] + r.blocks[b].seconds
                    held += size * float(begun - np.floor((now - end) / p + TOLERANCE))
            most[device] = max(most[device], held)
        return tuple(most)

    def excess_bytes(self) -> float:
        """By how much the worst device is over its room."""
        pairs = zip(self.held_bytes(), self.round.room_bytes, strict=True)
        return max(0.0, *(held - room * (1 + TOLERANCE) for held, room in pairs))

    def schedule(self, microbatches: int, name: str = "pattern") -> Schedule:
        """The pattern as a schedule of so many micro-batches: fill, repetition and drain."""
        placement = self.round.placement
        routes = len(placement.routes)
        rows: list[list[_Timed]] = [[] for _ in range(placement.devices)]
        rank = {b: i for i, b in enumerate(self.round.order)}
        each = self.round.copies * routes
        for b, block in enumerate(self.round.blocks):
            first = block.copy * routes + block.route
            for number, m in enumerate(range(first, microbatches, each)):
                # In whole periods and rounded, so that what is at once compares equal; of that
                # what takes no time comes first, so that it frees memory before more is taken.
                start = round(self.offset_s[b] / self.period_s + number, 9)
                task = (block.kind, block.chunk, m)
                rows[block.device].append((start, block.seconds > 0, rank[b], task))
        tables: list[Table] = [table_of([task for *_, task in sorted(mine)]) for mine in rows]
        route = tuple(m % routes for m in range(microbatches))
        return Schedule(name, placement, microbatches, tuple(tables), route)


_Timed = tuple[float, bool, int, tuple[int, int, int]]
