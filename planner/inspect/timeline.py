"""The predicted step of a plan on one device: ops and collectives in order, and memory.

A loop's body is shown once, with the time of all its rounds: order inside a round is true, the
place of a round in time is not. Times add up to those of `account`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from costmodel import full_bytes, wire_bytes
from ir import Reshard

from ..sharding.cost.account import Account, held_at
from .analysed_plan import AnalysedPlan

COMPUTE, COLLECTIVE = "compute", "collective"
TAKING = "new memory"


@dataclass(frozen=True, slots=True)
class Event:
    """Work of one device, all rounds of a loop together.

    lane: compute or collective.
    what: name of the op or kind of the collective; `new memory` where results take memory.
    cause: the op and its source line, or the cause of the collective.
    axes: mesh axes of a collective.
    sent_bytes: by the device in all rounds, ring convention.
    count: how often it runs in a step.
    moment: place in the order in which operations run.
    op: number of the flat op, -1 if none.
    """

    lane: str
    what: str
    cause: str
    axes: tuple[str, ...]
    start_s: float
    seconds: float
    sent_bytes: float
    count: float
    moment: int
    op: int

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds


@dataclass(frozen=True, slots=True)
class Predicted:
    """One step of one device.

    events: one after the other.
    memory: (second, bytes held from then on), in order.
    account: the sums.
    """

    events: tuple[Event, ...]
    memory: tuple[tuple[float, float], ...]
    account: Account

    @property
    def end_s(self) -> float:
        return self.events[-1].end_s if self.events else 0.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """An event without its start."""

    lane: str
    what: str
    cause: str
    axes: tuple[str, ...]
    seconds: float
    sent_bytes: float
    count: float
    moment: int
    op: int


def predicted(analysed: AnalysedPlan) -> Predicted:
    """Lays out the step of a plan."""
    sums = analysed.account
    now, events, starts = 0.0, list[Event](), dict[int, float]()
    for piece in _pieces(analysed):
        starts.setdefault(piece.moment, now)
        if piece.seconds > 0.0:
            events.append(
                Event(
                    piece.lane, piece.what, piece.cause, piece.axes, now, piece.seconds,
                    piece.sent_bytes, piece.count, piece.moment, piece.op,
                )
            )  # fmt: skip
            now += piece.seconds
    return Predicted(tuple(events), _memory(sums, starts, now), sums)


def _memory(
    sums: Account, starts: dict[int, float], end_s: float
) -> tuple[tuple[float, float], ...]:
    """Bytes over time; of moments with equal start the largest."""
    found: dict[float, float] = {}
    at = 0.0
    for moment, held in enumerate(sums.memory.tolist()):
        at = max(at, starts.get(moment, at))
        found[at] = max(found.get(at, 0.0), float(held))
    if found:
        found[end_s] = found.get(end_s, next(reversed(found.values())))
    return tuple(sorted(found.items()))


def _pieces(analysed: AnalysedPlan) -> Iterator[_Piece]:
    before: dict[int, list[Reshard]] = {}
    after: dict[int, list[Reshard]] = {}
    ends: dict[int, list[Reshard]] = {}
    for moved in analysed.decided.plan.reshards:
        at = moved.passage
        if at.op < 0:
            ends.setdefault(at.time, []).append(moved)
        else:
            (after if at.site.at == "result" else before).setdefault(at.op, []).append(moved)
    running: dict[int, list[int]] = {}
    for i in sorted(analysed.built.op_node):
        running.setdefault(analysed.builder.facts.at(analysed.flat.ops[i]), []).append(i)
    for moment in range(analysed.flat.clock + 1):
        for moved in ends.get(moment, ()):
            yield from _collectives(analysed, moved)
        for i in running.get(moment, ()):
            for moved in before.get(i, ()):
                yield from _collectives(analysed, moved)
            yield _compute(analysed, i)
            for moved in after.get(i, ()):
                yield from _collectives(analysed, moved)
    seconds = analysed.built.taking_s(analysed.choice)
    yield _Piece(COMPUTE, TAKING, "results", (), seconds, 0.0, 1.0, analysed.flat.clock, -1)


def _compute(analysed: AnalysedPlan, i: int) -> _Piece:
    op, node = analysed.flat.ops[i], analysed.built.op_node[i]
    at = analysed.builder.facts.at(op)
    seconds = float(analysed.built.work[node][analysed.choice[node]])
    label = f"{op.node.op} {op.node.source}".strip()
    return _Piece(COMPUTE, op.node.op, label, (), seconds, 0.0, op.weight, at, i)


def _collectives(analysed: AnalysedPlan, moved: Reshard) -> Iterator[_Piece]:
    reshard, mesh = analysed.builder.cache.reshard, analysed.decisions.mesh
    type_, weight = moved.change.type, moved.weight
    time, _ = held_at(analysed.builder.facts, moved)
    for step in moved.change.steps:
        kind = step.collective
        if kind is not None:
            seconds = reshard.step_s(step, type_) * weight
            sent = wire_bytes(kind, mesh.product(step.axes), full_bytes(step, type_, mesh)) * weight
            yield _Piece(
                COLLECTIVE, kind, moved.cause, step.axes, seconds, sent, weight, time,
                moved.passage.op,
            )  # fmt: skip
