"""Simulates a schedule with costs, beside a bound and other schedules of the same stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ...common.errors import PlanError
from .costs import Links, StageCosts
from .registry import schedules
from .round import TOLERANCE, round_of
from .simulate import simulate
from .table import Schedule
from .task import Kind
from .task_rows import rows_of
from .timeline import Timeline
from .transform import with_optimizer, with_recomputation
from .user_file import OwnSchedule


@final
@dataclass(frozen=True, slots=True)
class Beside:
    """Another schedule, simulated with the same costs."""

    step_s: float
    peak_bytes: float
    fits: bool


@final
@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """Result of simulating a schedule.

    lower_bound_s: bound over all orders of these tasks; 0 where none is known.
    beside: published schedules of the same stages on the same number of devices, where they exist.
    """

    timeline: Timeline
    costs: StageCosts
    fits: bool
    lower_bound_s: float
    beside: dict[str, Beside]

    @property
    def gap(self) -> float:
        """(step - bound) / step."""
        step_s = self.timeline.step_s
        return max(0.0, 1.0 - self.lower_bound_s / step_s) if step_s > 0 else 0.0

    def recomputes(self, device: int) -> bool:
        """Whether a device recomputes."""
        return any(task.kind is Kind.RECOMPUTE for task in self.timeline.schedule.tasks(device))


def price(own: OwnSchedule) -> Priced:
    """Simulates a schedule, and published schedules beside it.

    Raises:
        PlanError: if the file gave no costs, or they do not fit the schedule.
    """
    if own.costs is None:
        raise PlanError(
            "has no costs", kind="schedule-file", where="costs",
            remedy="add \"costs\" with at least forward_s, one number for each stage",
        )  # fmt: skip
    timeline = simulate(own.schedule, own.costs, own.links)
    fits = within(timeline, own.memory_bytes)
    beside = _beside(own, own.costs)
    # a schedule that does not fit is compared with orders that need as much memory
    memory_bytes = own.memory_bytes if fits else ()
    bound_s = _bound_s(own.schedule, own.costs, own.links, memory_bytes)
    return Priced(timeline, own.costs, fits, bound_s, beside)


def within(timeline: Timeline, memory_bytes: Sequence[float]) -> bool:
    """Whether every device stays within its memory; there is no limit if none is given."""
    if not memory_bytes:
        return True
    pairs = zip(timeline.peak_bytes, memory_bytes, strict=True)
    return all(peak <= limit * (1 + TOLERANCE) for peak, limit in pairs)


def _bound_s(
    schedule: Schedule, costs: StageCosts, links: Links | None, memory_bytes: Sequence[float]
) -> float:
    """Bound of the step in synchronous training, with or without overlap."""
    if schedule.slices > 1 or schedule.update_every or not schedule.trains:
        return 0.0
    round_ = round_of(schedule.placement, costs, split=True, links=links, memory_bytes=memory_bytes)
    each = np.bincount(schedule.route, minlength=len(schedule.placement.routes))
    return round_.lower_bound_s(int(each[0])) if len(set(each.tolist())) == 1 else 0.0


def _beside(own: OwnSchedule, costs: StageCosts) -> dict[str, Beside]:
    schedule = own.schedule
    found: dict[str, Beside] = {}
    for name, builder in schedules().items():
        try:
            other = builder(schedule.devices, schedule.microbatches)
        except PlanError:
            continue  # this schedule does not support these numbers
        same = other.placement.stages == costs.stages and other.slices == schedule.slices
        if not same or bool(other.update_every) != bool(schedule.update_every):
            continue
        timeline = simulate(_alike(other, schedule), costs, own.links)
        fits = within(timeline, own.memory_bytes)
        found[name] = Beside(timeline.step_s, max(timeline.peak_bytes), fits)
    return found


def _alike(other: Schedule, schedule: Schedule) -> Schedule:
    """Adds the first schedule's sums, updates and recomputation to the other one."""
    rows = rows_of(schedule)
    stage = np.array(schedule.placement.stage, np.int64)[rows.chunk]
    again = {int(s) for s in stage[rows.select(Kind.RECOMPUTE)]}
    if again and not len(rows_of(other).select(Kind.RECOMPUTE)):
        other = with_recomputation(other, again)
    return with_optimizer(other) if len(rows.select(Kind.OPTIMIZER)) else other
