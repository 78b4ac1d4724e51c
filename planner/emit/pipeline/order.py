"""The order in which one process starts the tasks of a schedule."""

from __future__ import annotations

from ...common.errors import PlanError
from ...pipeline.schedule import Kind, Schedule, Task, check

RUN = (
    Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT, Kind.RECOMPUTE,
)  # fmt: skip


def order_of(schedule: Schedule) -> tuple[Task, ...]:
    """All compute tasks, each after those that it reads, devices in turn.

    Transfers start as soon as their data exists; sums of gradients and updates come at the end.

    Raises:
        PlanError: if the schedule cannot run here.
    """
    check(schedule)
    tasks = [list(schedule.tasks(d)) for d in range(schedule.devices)]
    kinds = {task.kind for row in tasks for task in row}
    unknown = kinds & {Kind.OFFLOAD, Kind.FETCH}
    if unknown or schedule.slices > 1 or schedule.update_every:
        what = "token slices" if schedule.slices > 1 else "updates inside a step"
        raise PlanError(
            f"'{schedule.name}' has {'offload tasks' if unknown else what}, which the runtime does "
            "not run", kind="bad-schedule", where="schedule", remedy="choose another schedule",
        )  # fmt: skip
    queues = [[t for t in row if t.kind in RUN][::-1] for row in tasks]
    done: set[tuple[str, int, int]] = set()
    order: list[Task] = []
    while any(queues):
        before = len(order)
        for queue in queues:
            if queue and _ready(schedule, queue[-1], done):
                task = queue.pop()
                order.append(task)
                done.add((_phase(task), task.chunk, task.microbatch))
        if len(order) == before:
            raise AssertionError("a checked schedule always has a task that is ready")
    return tuple(order)


def _phase(task: Task) -> str:
    if task.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
        return "backward"
    return task.kind.word


def _ready(schedule: Schedule, task: Task, done: set[tuple[str, int, int]]) -> bool:
    phase, m = _phase(task), task.microbatch
    edges = schedule.placement.edges
    if phase == "forward":
        return all(("forward", a, m) in done for a, b in edges if b == task.chunk)
    if phase == "backward":
        later = all(("backward", b, m) in done for a, b in edges if a == task.chunk)
        return later and ("forward", task.chunk, m) in done
    return True
