"""The predicted step of a plan on one device: ops and collectives in order, and memory.

A loop's body is shown once, with the time of all its rounds: order inside a round is true, the
place of a round in time is not. Compute and the exposed seconds of collectives follow each other
and add up to the step of `account`; the other seconds of a collective are beside the compute before
its reader or after its maker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from costmodel import full_bytes, wire_bytes
from ir import Reshard

from ..sharding.cost.account import Account, held_at
from ..sharding.cost.in_parts import beside_product
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
    exposed_s: of a collective, in which compute waits or is slowed down.
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
    exposed_s: float
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

    events: in the order in which they begin to cost time.
    end_s: seconds of the step.
    memory: (second, bytes held from then on), in order.
    account: the sums.
    """

    events: tuple[Event, ...]
    memory: tuple[tuple[float, float], ...]
    account: Account
    end_s: float


@dataclass(frozen=True, slots=True)
class _Piece:
    """An event without its start.

    exposed_s: seconds for which it holds up what follows.
    early: whether the other seconds are before these, else after them.
    """

    lane: str
    what: str
    cause: str
    axes: tuple[str, ...]
    seconds: float
    exposed_s: float
    early: bool
    sent_bytes: float
    count: float
    moment: int
    op: int


def predicted(analysed: AnalysedPlan) -> Predicted:
    """Lays out the step of a plan."""
    sums, pieces = analysed.account, list(_pieces(analysed))
    now, events, starts = 0.0, list[Event](), dict[int, float]()
    for piece in pieces:
        starts.setdefault(piece.moment, now)
        if piece.seconds > 0.0:
            start = now - (piece.seconds - piece.exposed_s) if piece.early else now
            events.append(
                Event(
                    piece.lane, piece.what, piece.cause, piece.axes, start, piece.seconds,
                    piece.exposed_s, piece.sent_bytes, piece.count, piece.moment, piece.op,
                )
            )  # fmt: skip
            now += piece.exposed_s
    return Predicted(tuple(_queued(events, now)), _memory(sums, starts, now), sums, now)


def _queued(events: Sequence[Event], end_s: float) -> list[Event]:
    """The events with collectives one after another, none later than it was where that is so."""
    found, free = list(events), end_s
    for n in reversed(range(len(found))):
        event = found[n]
        if event.lane == COLLECTIVE:
            free = max(0.0, min(event.start_s, free - event.seconds))
            found[n] = replace(event, start_s=free)
    return found


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
    before: dict[int, list[tuple[Reshard, float]]] = {}
    after: dict[int, list[tuple[Reshard, float]]] = {}
    ends: dict[int, list[tuple[Reshard, float]]] = {}
    reshards = analysed.decided.plan.reshards
    for moved, exposed_s in zip(reshards, analysed.account.exposed, strict=True):
        at = moved.passage
        if at.op < 0:
            ends.setdefault(at.time, []).append((moved, exposed_s))
        else:
            side = after if at.site.at == "result" else before
            side.setdefault(at.op, []).append((moved, exposed_s))
    running: dict[int, list[int]] = {}
    for i in sorted(analysed.built.op_node):
        running.setdefault(analysed.builder.facts.at(analysed.flat.ops[i]), []).append(i)
    for moment in range(analysed.flat.clock + 1):
        for moved in ends.get(moment, ()):
            yield from _collectives(analysed, *moved)
        for i in running.get(moment, ()):
            for moved in before.get(i, ()):
                yield from _collectives(analysed, *moved)
            yield _compute(analysed, i)
            for moved in after.get(i, ()):
                yield from _collectives(analysed, *moved)
    seconds = analysed.built.taking_s(analysed.choice)
    yield _Piece(
        COMPUTE, TAKING, "results", (), seconds, seconds, False, 0.0, 1.0, analysed.flat.clock, -1
    )


def _compute(analysed: AnalysedPlan, i: int) -> _Piece:
    op, node = analysed.flat.ops[i], analysed.built.op_node[i]
    at = analysed.builder.facts.at(op)
    seconds = float(analysed.built.work[node][analysed.choice[node]])
    label = f"{op.node.op} {op.node.source}".strip()
    return _Piece(COMPUTE, op.node.op, label, (), seconds, seconds, False, 0.0, op.weight, at, i)


def _collectives(analysed: AnalysedPlan, moved: Reshard, exposed_s: float) -> Iterator[_Piece]:
    """The collectives of a reshard, which share its exposed seconds."""
    reshard, mesh = analysed.builder.cache.reshard, analysed.decisions.mesh
    type_, weight = moved.change.type, moved.weight
    time, _ = held_at(analysed.builder.facts, moved)
    early = moved.passage.site.at != "result"
    parts = beside_product(analysed.decided, moved)
    if parts is not None:
        yield _Piece(
            COLLECTIVE, parts.kind, moved.cause, parts.axes, parts.seconds, exposed_s,
            early, parts.sent_bytes, parts.count, time, moved.passage.op,
        )  # fmt: skip
        return
    total = sum(reshard.step_s(s, type_) for s in moved.change.steps if s.collective) * weight
    for step in moved.change.steps:
        kind = step.collective
        if kind is not None:
            seconds = reshard.step_s(step, type_) * weight
            sent = wire_bytes(kind, mesh.product(step.axes), full_bytes(step, type_, mesh)) * weight
            yield _Piece(
                COLLECTIVE, kind, moved.cause, step.axes, seconds,
                exposed_s * seconds / total if total > 0.0 else 0.0, early, sent, weight, time,
                moved.passage.op,
            )  # fmt: skip
