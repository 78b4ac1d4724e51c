"""How much of a plan's communication hides behind its compute.

Operations run in the order of the program. Beside them a collective may run between the operation
that makes its operand and the one that reads its result, inside the body of the loop that both are
in; all rounds of a body are alike, so that they count as one with the seconds of all. What an
operation makes is sent at once; what is there from the start as late as still hides it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from costmodel import Cluster, Overlap, Transfer, overlapped
from ir.analysis import FlatProgram, Place

from ..problem.build import Builder
from ..problem.records import Built
from .account import Move, moves


def overlapped_s(builder: Builder, built: Built, choice: Sequence[int], cluster: Cluster) -> float:
    """Seconds of a step with collectives beside compute; 0 for machines that do not run them so."""
    if cluster.has_cpus:
        return 0.0
    return hidden(builder, built, choice).step_s


def hidden(builder: Builder, built: Built, choice: Sequence[int]) -> Overlap:
    """Compute, communication, and the step with one beside the other.

    Args:
        builder: of the problem.
        built: the problem.
        choice: of its nodes.
    """
    order = _Order.of(builder, built)
    shares: dict[int, int] = {}
    for i in order.ops:
        node = built.op_node[i]
        shares[node] = shares.get(node, 0) + 1
    works = [
        float(built.work[node][choice[node]]) / shares[node]
        for node in (built.op_node[i] for i in order.ops)
    ]
    works.append(built.taking_s(choice))  # of the results, at the end
    done = [0.0, *accumulate(works)]
    transfers: list[Transfer] = []
    reshard = builder.cache.reshard
    for move in moves(builder, built, tuple(choice)):
        steps = reshard.path(move.type, move.before, move.after)
        seconds = sum(reshard.step_s(s, move.type) for s in steps if s.collective)
        if seconds > 0.0:
            transfers.append(_transfer(order, move, seconds * move.weight, done))
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
    def of(cls, builder: Builder, built: Built) -> _Order:
        flat = builder.flat
        ops = tuple(sorted(built.op_node))
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


def _transfer(order: _Order, move: Move, seconds: float, done: Sequence[float]) -> Transfer:
    """From where to where a change of state may run."""
    if move.op < 0:
        ready = order.made.get(move.value, -1)
        needed = order.at(move.time)
    else:
        body = order.flat.ops[move.op].place[:-1]
        first, end = order.bodies[body]
        here = order.place[move.op]
        if move.holds == "after":
            ready = here
            readers = [n for n in order.read.get(move.value, ()) if n > here]
            needed = min([*readers, end])
        else:
            ready, needed = max(order.made.get(move.value, -1), first - 1), here
    needed = max(needed, ready + 1)
    if move.value in order.made:
        return Transfer(seconds, ready, needed)
    begin = max(0, bisect_right(done, done[needed] - seconds, hi=needed) - 1)
    return Transfer(seconds, ready, needed, max(1, needed - begin))
