"""A list scheduler: builds an order for any placement by running any task that is ready.

Whenever a device is free it takes the first of its ready tasks: a backward before a forward, the
chunk nearest the end of the model before others, an early micro-batch before a late one, and a
weight gradient only where nothing else is ready. Under a memory limit a micro-batch enters only if
every device on its route has room for it until its backward there is done; so a micro-batch that
entered can always finish.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ...common.errors import PlanError
from .costs import StageCosts
from .placement import Placement
from .table import Schedule, table_of
from .task import Kind

_Task = tuple[Kind, int, int]
_EPSILON = 1e-9


def greedy(
    placement: Placement,
    microbatches: int,
    costs: StageCosts,
    *,
    in_flight: Sequence[int] = (),
    memory_bytes: Sequence[float] = (),
    split: bool = False,
    name: str = "greedy",
) -> Schedule:
    """The order in which the list scheduler runs a step.

    Args:
        placement: of the chunks.
        microbatches: in a step.
        costs: costs of the stages; the order stays valid for other costs.
        in_flight: most micro-batches of which each chunk may hold activations; no limit if empty.
        memory_bytes: of activations that each device may hold; no limit if empty.
        split: whether the weight gradient is a task of its own.
        name: of the schedule.

    Raises:
        PlanError: if a device cannot hold even one micro-batch.
    """
    routes = tuple(m % len(placement.routes) for m in range(microbatches))
    room = _Room(memory_bytes, placement.devices)
    run = _Run(
        placement, costs, split=split, route=routes, room=room,
        in_flight=in_flight or (microbatches,) * placement.chunks,
    )  # fmt: skip
    order = run.order()
    if any(run.left):
        raise PlanError(
            "the activations of one micro-batch do not fit", kind="does-not-fit",
            where="memory_bytes",
            remedy="allow each device at least the activations of all its chunks",
        )  # fmt: skip
    tables = tuple(table_of(rows) for rows in order)
    return Schedule(name, placement, microbatches, tables, routes)


class _Room:
    """Bytes of activations on each device."""

    def __init__(self, limit: Sequence[float], devices: int) -> None:
        self.limit, self.used = limit, [0.0] * devices

    def take(self, needs: dict[int, float]) -> bool:
        """Reserves room on each device, or returns False."""
        limit, used = self.limit, self.used
        if limit and any(used[d] + n > limit[d] * (1 + _EPSILON) for d, n in needs.items()):
            return False
        for device, size in needs.items():
            used[device] += size
        return True


class _Run:
    """State of the list scheduler."""

    def __init__(
        self,
        placement: Placement,
        costs: StageCosts,
        *,
        split: bool,
        route: tuple[int, ...],
        room: _Room,
        in_flight: Sequence[int],
    ) -> None:
        self.placement, self.split, self.route, self.room = placement, split, route, room
        count = placement.chunks
        self.into: list[list[int]] = [[] for _ in range(count)]
        self.out: list[list[int]] = [[] for _ in range(count)]
        for a, b in placement.edges:
            self.into[b].append(a)
            self.out[a].append(b)
        self.depth = self._depths()
        self.back = Kind.INPUT_GRADIENT if split else Kind.BACKWARD
        backward = costs.input_gradient_s if split else costs.backward_s
        by_kind = {
            Kind.FORWARD: costs.forward_s, self.back: backward,
            Kind.WEIGHT_GRADIENT: costs.weight_gradient_s,
        }  # fmt: skip
        self.seconds = {k: [v[s] for s in placement.stage] for k, v in by_kind.items()}
        self.held = [costs.activation_bytes[s] for s in placement.stage]
        self.kept = [
            min(costs.weight_input_bytes[s], costs.activation_bytes[s]) if split else 0.0
            for s in placement.stage
        ]
        self.missing: dict[tuple[Kind, int, int], int] = {}
        self.events: list[tuple[float, int, int, _Task | None]] = []
        self.ready: list[list[tuple[int, int, int, _Task]]] = [[] for _ in range(placement.devices)]
        self.open = list(in_flight)
        self.parked: list[list[int]] = [[] for _ in range(count)]
        self.free = [True] * placement.devices
        self.left = [len(placement.routes[r]) for r in route]
        self.rows: list[list[_Task]] = [[] for _ in range(placement.devices)]

    def _depths(self) -> list[int]:
        """Longest path from a start to each chunk, in edges."""
        depth = [0] * self.placement.chunks
        for _ in depth:
            for a, b in self.placement.edges:
                depth[b] = max(depth[b], depth[a] + 1)
        return depth

    def order(self) -> list[list[_Task]]:
        """Tasks of every device, in the order of their starts."""
        queues = [[m for m, r in enumerate(self.route) if r == k][::-1] for k in set(self.route)]
        self._admit(queues)
        now = 0.0
        while True:
            for device, free in enumerate(self.free):
                if free and self.ready[device]:
                    self._start(device, now)
            if not self.events:
                return self.rows
            now = self.events[0][0]
            while self.events and self.events[0][0] <= now + _EPSILON * max(1.0, now):
                self._finish(heapq.heappop(self.events))
            self._admit(queues)

    def _admit(self, queues: list[list[int]]) -> None:
        """Lets micro-batches in, in order on each route, while there is room."""
        for queue in sorted(queues, key=lambda queue: queue[-1] if queue else 0):
            while queue and self.room.take(self._needs(queue[-1])):
                m = queue.pop()
                for chunk in self.placement.routes[self.route[m]]:
                    if not self.into[chunk]:
                        self._push((Kind.FORWARD, chunk, m))

    def _needs(self, m: int) -> dict[int, float]:
        needs: dict[int, float] = {}
        for chunk in self.placement.routes[self.route[m]]:
            device = self.placement.device[chunk]
            needs[device] = needs.get(device, 0.0) + self.held[chunk]
        return needs

    def _push(self, task: _Task) -> None:
        """Makes a task ready; a forward waits until its chunk may hold one more."""
        kind, chunk, m = task
        if kind is Kind.FORWARD:
            heapq.heappush(self.parked[chunk], m)
            self._unpark(chunk)
        else:
            self._queue(task)

    def _unpark(self, chunk: int) -> None:
        while self.parked[chunk] and self.open[chunk]:
            self.open[chunk] -= 1
            self._queue((Kind.FORWARD, chunk, heapq.heappop(self.parked[chunk])))

    def _queue(self, task: _Task) -> None:
        kind, chunk, m = task
        rank = 2 if kind is Kind.WEIGHT_GRADIENT else int(kind is Kind.FORWARD)
        key = (rank, -self.depth[chunk], m, task)
        heapq.heappush(self.ready[self.placement.device[chunk]], key)

    def _start(self, device: int, now: float) -> None:
        task = heapq.heappop(self.ready[device])[-1]
        self.rows[device].append(task)
        self.free[device] = False
        end = now + self.seconds[task[0]][task[1]]
        heapq.heappush(self.events, (end, 0, device, task))
        for follower in self._followers(task):
            heapq.heappush(self.events, (end, 1, -1, follower))

    def _followers(self, task: _Task) -> list[_Task]:
        kind, chunk, m = task
        if kind is Kind.FORWARD:
            return [(Kind.FORWARD, c, m) for c in self.out[chunk]] + [(self.back, chunk, m)]
        if kind is self.back:
            after = [(self.back, c, m) for c in self.into[chunk]]
            return [*after, (Kind.WEIGHT_GRADIENT, chunk, m)] if self.split else after
        return []

    def _finish(self, event: tuple[float, int, int, _Task | None]) -> None:
        _, arrives, device, task = event
        assert task is not None
        kind, chunk, m = task
        if arrives:
            needs = self.into if kind is Kind.FORWARD else self.out
            extra = int(kind is not Kind.FORWARD)
            first = 1 if kind is Kind.WEIGHT_GRADIENT else len(needs[chunk]) + extra
            self.missing[task] = self.missing.get(task, first) - 1
            if self.missing[task] == 0:
                del self.missing[task]
                self._push(task)
            return
        self.free[device] = True
        if kind is self.back:
            self.room.used[device] -= self.held[chunk] - self.kept[chunk]
            self.left[m] -= 1
            self.open[chunk] += 1
            self._unpark(chunk)
        elif kind is Kind.WEIGHT_GRADIENT:
            self.room.used[device] -= self.kept[chunk]
