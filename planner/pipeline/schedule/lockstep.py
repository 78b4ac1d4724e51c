"""A schedule in rounds: all devices compute in step, in phases of one kind of task each.

A round has a phase of forwards, then one of backwards (or of input gradients), then one of weight
gradients; a device has at most one task in a phase. Activations are sent during the phases behind
the forwards, gradients during the forwards of the next round, so that both run beside compute:

    forward (s + 1, m) in a later round than forward (s, m)
    backward (s, m) in a later round than backward (s + 1, m)

Devices keep the order of their own tasks. A phase takes as long as its slowest task, since each
device waits for what its neighbours send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from ...common.errors import PlanError
from .costs import StageCosts
from .table import Schedule
from .task import Kind, Task

# Phases of a round.
FORWARD, BACKWARD, WEIGHT = range(3)
PHASE: Mapping[Kind, int] = {
    Kind.FORWARD: FORWARD, Kind.BACKWARD: BACKWARD, Kind.INPUT_GRADIENT: BACKWARD,
    Kind.WEIGHT_GRADIENT: WEIGHT,
}  # fmt: skip
# Moments of a round: gradients arrive, the three phases, activations arrive.
MOMENTS = 5
ARRIVES_BACK, ARRIVES_AHEAD = 0, 4


@final
@dataclass(frozen=True, slots=True)
class Spans:
    """Slots of the values of micro-batches on each device, by when they are alive.

    slot: (device, micro-batch) -> number of the slot.
    spare: (device, round) -> a slot that is free when nothing arrives in a round.
    most: slots on each device.
    """

    slot: Mapping[tuple[int, int], int]
    spare: Mapping[tuple[int, int], int]
    most: tuple[int, ...]


@final
@dataclass(frozen=True)
class Lockstep:
    """The rounds of a schedule.

    at: (kind, stage, micro-batch) -> round, of all compute tasks but recomputation.
    stages: number of stages, each with devices of its own.
    microbatches: of a step.
    """

    at: Mapping[tuple[Kind, int, int], int]
    stages: int
    microbatches: int

    @cached_property
    def rounds(self) -> int:
        """Number of rounds."""
        return 1 + max(self.at.values())

    @cached_property
    def tasks(self) -> Mapping[tuple[int, int, int], tuple[Kind, int]]:
        """(round, phase, stage) -> (kind, micro-batch)."""
        return {(r, PHASE[kind], s): (kind, m) for (kind, s, m), r in self.at.items()}

    def step_s(self, costs: StageCosts) -> float:
        """Seconds of a step: of each phase of each round those of its slowest task.

        Args:
            costs: of the stages; recomputation is part of the backward, transfers are free.
        """
        total = max(costs.optimizer_s)
        for r in range(self.rounds):
            for phase in range(WEIGHT + 1):
                found = (self.tasks.get((r, phase, s)) for s in range(self.stages))
                total += max(
                    (_seconds(task[0], s, costs) for s, task in enumerate(found) if task),
                    default=0.0,
                )
        return total

    def _moment(self, kind: Kind, s: int, m: int) -> int:
        return self.at[kind, s, m] * MOMENTS + 1 + PHASE[kind]

    def _first(self, s: int, m: int) -> int:
        """Moment of the backward or of the input gradient."""
        fused = (Kind.BACKWARD, s, m) in self.at
        return self._moment(Kind.BACKWARD if fused else Kind.INPUT_GRADIENT, s, m)

    def _last(self, s: int, m: int) -> int:
        """Moment of the last task of a micro-batch."""
        late = (Kind.WEIGHT_GRADIENT, s, m) in self.at
        return self._moment(Kind.WEIGHT_GRADIENT, s, m) if late else self._first(s, m)

    def _spans(self, begins: Mapping[tuple[int, int], int], arrives: int | None = None) -> Spans:
        """Slots from a moment until the last task of a micro-batch.

        Args:
            begins: (stage, micro-batch) -> moment.
            arrives: moment of each round at which something may arrive; None for values that are
                made in place.
        """
        slot: dict[tuple[int, int], int] = {}
        spare: dict[tuple[int, int], int] = {}
        most: list[int] = []
        for s in range(self.stages):
            spans = [(b, self._last(s, m), m) for (at, m), b in begins.items() if at == s]
            ends: list[int] = []  # of what each slot holds

            def taken(begin: int, end: int, ends: list[int] = ends) -> int:
                free = next((k for k, last in enumerate(ends) if last < begin), len(ends))
                ends[free : free + 1] = [end]
                return free

            if arrives is not None:
                busy = {b for b, _, _ in spans}
                idle = (r * MOMENTS + arrives for r in range(self.rounds))
                spans += [(moment, moment, -1) for moment in idle if moment not in busy]
            for begin, end, m in sorted(spans):
                if m < 0:
                    spare[s, begin // MOMENTS] = taken(begin, end)
                else:
                    slot[s, m] = taken(begin, end)
            most.append(len(ends))
        return Spans(slot, spare, tuple(most))

    @cached_property
    def saved(self) -> Spans:
        """What the forward keeps for the gradients."""
        pairs = ((s, m) for kind, s, m in self.at if kind is Kind.FORWARD)
        return self._spans({(s, m): self._moment(Kind.FORWARD, s, m) for s, m in pairs})

    @cached_property
    def between(self) -> Spans:
        """What the input gradient keeps for the weight gradient."""
        pairs = ((s, m) for kind, s, m in self.at if kind is Kind.INPUT_GRADIENT)
        return self._spans({(s, m): self._moment(Kind.INPUT_GRADIENT, s, m) for s, m in pairs})

    @cached_property
    def activations(self) -> Spans:
        """Values from the stage before."""
        begins = {
            (s + 1, m): r * MOMENTS + ARRIVES_AHEAD
            for (kind, s, m), r in self.at.items()
            if kind is Kind.FORWARD and s + 1 < self.stages
        }
        return self._spans(begins, ARRIVES_AHEAD)

    @cached_property
    def gradients(self) -> Spans:
        """Gradients from the stage after."""
        begins = {
            (s - 1, m): (r + 1) * MOMENTS + ARRIVES_BACK
            for (kind, s, m), r in self.at.items()
            if PHASE[kind] == BACKWARD and s
        }
        return self._spans(begins, ARRIVES_BACK)


def lockstep(schedule: Schedule) -> Lockstep:
    """The rounds of a schedule, each task as early as it can be.

    Raises:
        PlanError: if stages are not one chunk on each device, in order, or tasks are of other
            kinds.
    """
    placement = schedule.placement
    if placement.device != tuple(range(schedule.devices)) or len(placement.routes) != 1:
        raise _bad(schedule, "does not have one stage on each group of devices, in order")
    if schedule.slices > 1 or schedule.update_every or not schedule.trains:
        raise _bad(schedule, "has token slices, updates inside a step, or no backward")
    queues = [_phased(schedule, d) for d in range(schedule.devices)]
    at: dict[tuple[Kind, int, int], int] = {}
    ends = [(-1, WEIGHT)] * schedule.devices  # (round, phase) of each device's last task
    while any(queues):
        before = len(at)
        for s, queue in enumerate(queues):
            while queue and (ready := _ready(queue[0], s, at, schedule.devices)) is not None:
                task = queue.pop(0)
                (r, phase), own = ends[s], PHASE[task.kind]
                found = max(ready, r if own > phase else r + 1)
                at[task.kind, s, task.microbatch] = found
                ends[s] = found, own
        if len(at) == before:
            raise AssertionError("a checked schedule always has a task that is ready")
    return Lockstep(at, schedule.devices, schedule.microbatches)


def _phased(schedule: Schedule, device: int) -> list[Task]:
    """Tasks of a device that have a phase; a recomputation is part of the gradient after it."""
    tasks = list(schedule.tasks(device))
    if {task.kind for task in tasks} & {Kind.OFFLOAD, Kind.FETCH}:
        raise _bad(schedule, "moves activations to the host")
    return [task for task in tasks if task.kind in PHASE]


def _ready(task: Task, s: int, at: Mapping[tuple[Kind, int, int], int], stages: int) -> int | None:
    """First round that data allow; None while what the task waits for has no round."""
    m, kind = task.microbatch, task.kind
    if kind is Kind.FORWARD:
        before = at.get((kind, s - 1, m)) if s else -1
        return None if before is None else before + 1
    if kind is Kind.WEIGHT_GRADIENT:
        return at.get((Kind.INPUT_GRADIENT, s, m))
    own = at.get((Kind.FORWARD, s, m))
    if own is None or s == stages - 1:
        return own
    after = [at.get((k, s + 1, m)) for k in (Kind.BACKWARD, Kind.INPUT_GRADIENT)]
    found = next((r for r in after if r is not None), None)
    return None if found is None else max(own, found + 1)


def _seconds(kind: Kind, s: int, costs: StageCosts) -> float:
    if kind is Kind.FORWARD:
        return costs.forward_s[s]
    if kind is Kind.WEIGHT_GRADIENT:
        return costs.weight_gradient_s[s]
    both = costs.weight_gradient_s[s] if kind is Kind.BACKWARD else 0.0
    return costs.recompute_s[s] + costs.input_gradient_s[s] + both


def _bad(schedule: Schedule, what: str) -> PlanError:
    names: Sequence[str] = ("gpipe", "1f1b", "1f1b-eager", "1f1b-deep", "zb-h1", "zb-h2")
    return PlanError(
        f"'{schedule.name}' cannot run in rounds: it {what}", kind="bad-schedule",
        where="schedule", remedy=f"plan with one of schedules={tuple(names)!r}",
    )  # fmt: skip
