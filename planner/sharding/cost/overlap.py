"""The part of a plan's communication that overlaps with its compute.

Operations run in program order. A collective may run beside them between the op that makes its
operand and the op that reads its result, inside the body of the loop that both are in; all rounds
of a body are equal, so that they count as one with the seconds of all. The result of an op is sent
at once; a value that exists from the start as late as compute still hides it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from costmodel import Cluster, Overlap, Transfer, overlapped
from ir import LoweredPlan
from ir.analysis import FlatProgram, Passage, Place

from ..lower import Decided


def overlapped_s(decided: Decided, cluster: Cluster) -> float:
    """Seconds of a step with collectives beside compute; 0 for machines without overlap."""
    if cluster.has_cpus:
        return 0.0
    return hidden(decided).step_s


def hidden(decided: Decided) -> Overlap:
    """Compute, communication, and the step with overlap."""
    built, choice, plan = decided.built, decided.choice, decided.plan
    order = _Order.of(plan)
    shares: dict[int, int] = {}
    for i in order.ops:
        node = built.op_node[i]
        shares[node] = shares.get(node, 0) + 1
    works = [
        float(built.work[node][choice[node]]) / shares[node]
        for node in (built.op_node[i] for i in order.ops)
    ]
    works.append(built.taking_s(choice))  # taking memory for the results, at the end
    done = [0.0, *accumulate(works)]
    transfers: list[Transfer] = []
    reshard = decided.builder.cache.reshard
    for moved in plan.reshards:
        seconds = sum(reshard.step_s(s, moved.change.type) for s in moved.change.steps)
        if seconds > 0.0:
            transfers.append(_transfer(order, moved.passage, seconds * moved.weight, done))
    return overlapped(works, transfers)


@dataclass(frozen=True, slots=True)
class _Order:
    """The order in which operations run.

    ops: flat numbers, in order; `place` is a position in it.
    times: moments of these.
    place: flat number of an op -> position.
    bodies: body of a loop -> positions [first, end) of the ops in it.
    made: value -> position of its maker.
    """

    flat: FlatProgram
    ops: tuple[int, ...]
    times: tuple[int, ...]
    place: dict[int, int]
    bodies: dict[Place, tuple[int, int]]
    made: dict[int, int]
    read: dict[int, list[int]]

    @classmethod
    def of(cls, plan: LoweredPlan) -> _Order:
        flat = plan.flat
        ops = tuple([i for i, strategy in enumerate(plan.strategies) if strategy is not None])
        place = {i: n for n, i in enumerate(ops)}
        bodies: dict[Place, tuple[int, int]] = {(): (0, len(ops))}
        made: dict[int, int] = {}
        read: dict[int, list[int]] = {}
        for n, i in enumerate(ops):
            op = flat.ops[i]
            for depth in range(2, len(op.place), 2):
                body = op.place[:depth]
                bodies[body] = bodies.get(body, (n, n))[0], n + 1
            made |= dict.fromkeys(op.outputs, n)
            for v in op.inputs:
                if isinstance(v, int):
                    read.setdefault(v, []).append(n)
        times = tuple(flat.ops[i].time for i in ops)
        return cls(flat, ops, times, place, bodies, made, read)

    def at(self, moment: int) -> int:
        """Position of the first op that runs at a moment or later."""
        return bisect_left(self.times, moment)


def _transfer(order: _Order, at: Passage, seconds: float, done: Sequence[float]) -> Transfer:
    """The window of ops beside which a change of state may run."""
    if at.op < 0:
        ready = order.made.get(at.value, -1)
        needed = order.at(at.time)
    else:
        body = order.flat.ops[at.op].place[:-1]
        first, end = order.bodies[body]
        here = order.place[at.op]
        if at.site.at == "result":
            ready = here
            readers = [n for n in order.read.get(at.value, ()) if n > here]
            needed = min([*readers, end])
        else:
            ready, needed = max(order.made.get(at.value, -1), first - 1), here
    needed = max(needed, ready + 1)
    if at.value in order.made:
        return Transfer(seconds, ready, needed)
    begin = max(0, bisect_right(done, done[needed] - seconds, hi=needed) - 1)
    return Transfer(seconds, ready, needed, max(1, needed - begin))
