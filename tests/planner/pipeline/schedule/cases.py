"""Schedules to test with, and a slow simulator of its own making to hold the fast one against."""

from __future__ import annotations

from planner.pipeline.schedule import Kind, Links, Schedule, StageCosts, Task, build

# Name -> (stages, micro-batches, options): small enough for the slow simulator. Others: (3, 6, {}).
CASES: dict[str, tuple[int, int, dict[str, int]]] = {
    "1f1b": (4, 7, {}),
    "1f1b-deep": (4, 15, {}),
    "1f1b-eager": (4, 9, {}),
    "1f1b-stashed": (3, 6, {}),
    "chimera": (4, 8, {}),
    "gpipe": (3, 4, {}),
    "interleaved": (3, 6, {"chunks": 2}),
    "token-slices": (3, 2, {"slices": 3}),
    "zb-h1": (4, 9, {}),
    "zb-h2": (4, 9, {}),
    "zb-v": (3, 8, {}),
}


def case(name: str) -> Schedule:
    """The small example of a schedule."""
    stages, microbatches, options = CASES.get(name, (3, 6, {}))
    return build(name, stages, microbatches, **options)


Key = tuple[Kind, int, int, int]
BACK = (Kind.BACKWARD, Kind.INPUT_GRADIENT)


def slow_times(schedule: Schedule, costs: StageCosts, links: Links) -> dict[Key, float]:
    """End of every task: each device in turn runs its next task if what it needs is there.

    Written from the meaning of the tasks, one at a time; knows forwards, backwards, both
    gradients, recomputation and updates.
    """
    slow = _Slow(schedule, costs, links)
    queues = [list(schedule.tasks(d)) for d in range(schedule.devices)]
    left = sum(map(len, queues))
    while left:
        before = left
        for queue in queues:
            while queue and slow.can_run(queue[0]):
                slow.run(queue.pop(0))
                left -= 1
        assert left < before, "deadlock"
    return slow.ends


class _Slow:
    """What has run so far."""

    def __init__(self, schedule: Schedule, costs: StageCosts, links: Links) -> None:
        self.schedule, self.costs, self.links = schedule, costs, links
        self.placement = schedule.placement
        everything = [t for d in range(schedule.devices) for t in schedule.tasks(d)]
        self.known = {(t.kind, t.chunk, t.microbatch, t.part) for t in everything}
        self.ends: dict[Key, float] = {}
        self.free = [0.0] * schedule.devices
        self.link_free: dict[tuple[int, int], float] = {}
        self.arrived: dict[tuple[Key, int], float] = {}

    def needs(self, task: Task) -> list[Key]:
        c, m, j = task.chunk, task.microbatch, task.part
        found: list[Key] = []
        if task.kind is Kind.FORWARD:
            found += [(Kind.FORWARD, a, m, j) for a, b in self.placement.edges if b == c]
            found += [(Kind.FORWARD, c, m, j - 1)]
        elif task.kind in BACK:
            found += [(k, b, m, j) for a, b in self.placement.edges if a == c for k in BACK]
            found += [(k, c, m, j + 1) for k in BACK]
            found += [(k, c, m, j) for k in (Kind.FORWARD, Kind.RECOMPUTE)]
        elif task.kind is Kind.RECOMPUTE:
            found += [(Kind.FORWARD, c, m, j)]
        elif task.kind is Kind.WEIGHT_GRADIENT:
            found += [(Kind.INPUT_GRADIENT, c, m, j)]
        return [key for key in found if key in self.known]

    def can_run(self, task: Task) -> bool:
        return all(key in self.ends for key in self.needs(task))

    def run(self, task: Task) -> None:
        device, c = self.placement.device[task.chunk], task.chunk
        ready = [self.arrived.get((key, c), self.ends[key]) for key in self.needs(task)]
        key = (task.kind, c, task.microbatch, task.part)
        self.ends[key] = max([self.free[device], *ready]) + self.seconds(task)
        self.free[device] = self.send(task, key)

    def seconds(self, task: Task) -> float:
        costs = self.costs
        share = 1.0 / self.schedule.slices if task.kind is not Kind.OPTIMIZER else 1.0
        table = {
            Kind.FORWARD: costs.forward_s, Kind.BACKWARD: costs.backward_s,
            Kind.INPUT_GRADIENT: costs.input_gradient_s,
            Kind.WEIGHT_GRADIENT: costs.weight_gradient_s, Kind.RECOMPUTE: costs.recompute_s,
            Kind.OPTIMIZER: costs.optimizer_s,
        }  # fmt: skip
        return table[task.kind][self.placement.stage[task.chunk]] * share

    def send(self, task: Task, key: Key) -> float:
        """Puts the result on its links; returns when the sender may go on."""
        end = done = self.ends[key]
        for reader, upstream in self.readers(task):
            ends = (self.placement.device[task.chunk], self.placement.device[reader])
            at = end
            if ends[0] != ends[1]:
                at = max(end, self.link_free.get(ends, 0.0)) + self.transfer_s(upstream)
                self.link_free[ends] = at
                done = done if self.links.overlap else max(done, at)
            self.arrived[key, reader] = at
        return done

    def readers(self, task: Task) -> list[tuple[int, int]]:
        """Chunks that read the result, each with the chunk whose activations it is about."""
        c, edges = task.chunk, self.placement.edges
        found = [(b, c) for a, b in edges if a == c] if task.kind is Kind.FORWARD else []
        found += [(a, a) for a, b in edges if b == c] if task.kind in BACK else []
        return found

    def transfer_s(self, upstream: int) -> float:
        latency, bandwidth = self.links.latency_s, self.links.bandwidth_bytes_per_s
        assert isinstance(latency, float)
        assert isinstance(bandwidth, float)
        size = self.costs.output_bytes[self.placement.stage[upstream]] / self.schedule.slices
        return latency + size / bandwidth
