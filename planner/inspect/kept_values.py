"""What the forward pass leaves to the backward pass: kept, computed again, or on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ir import FROM_HOST

from ..sharding.lower import Decided
from .again import products_again
from .analysed_plan import AnalysedPlan
from .phases import FORWARD, phases

CARRIED = "inputs of layers, and what else loops carry"
KEPT, AGAIN, HOST = "kept", "computed again", "on the host"


@dataclass(frozen=True, slots=True)
class Left:
    """Values of one operation and source line, all of its runs in one call.

    state: `KEPT`, `AGAIN` (products only) or `HOST`.
    nbytes: of one device [byte]; of what is computed again, if it were kept.
    seconds: of computing it again, or of the copies of it, there and back [s].
    """

    state: str
    op: str
    source: str
    nbytes: float
    seconds: float


def left_to_backward(analysed: AnalysedPlan) -> tuple[Left, ...]:
    """What is kept, the largest first, then what is computed again and what is on the host.

    Kept is what has a buffer when the last operation of the forward pass has run, and later.
    """
    rows: dict[tuple[str, str, str], list[float]] = {}
    for one in _all(analysed):
        row = rows.setdefault((one.state, one.op, one.source), [0.0, 0.0])
        row[:] = row[0] + one.nbytes, row[1] + one.seconds
    found = [Left(*key, *figures) for key, figures in rows.items()]
    order = (KEPT, AGAIN, HOST)
    return tuple(sorted(found, key=lambda one: (order.index(one.state), -one.nbytes, one.source)))


def _all(analysed: AnalysedPlan) -> Iterator[Left]:
    yield from _kept(analysed)
    for one in products_again(analysed.decided, chosen=analysed.program.recomputed is not None):
        yield Left(AGAIN, one.op, one.source, one.nbytes, one.seconds)
    for copy in analysed.account.host_copies:
        there = copy.nbytes if copy.op != FROM_HOST else 0.0
        yield Left(HOST, "copies", copy.source, there, copy.seconds)


def _kept(analysed: AnalysedPlan) -> Iterator[Left]:
    flat, facts, phase = analysed.flat, analysed.builder.facts, phases(analysed)
    forward = [i for i, when in phase.items() if when == FORWARD]
    if len(forward) == len(flat.ops):
        return  # there is no backward pass
    turn = max(flat.ops[i].time for i in forward)
    slices = {link.target: link.source for link in flat.links if link.target in facts.stack_of}
    for v, value in enumerate(flat.values):
        made = flat.maker.get(slices.get(v, v))
        if value.kind == "argument" or (made is not None and made[0] not in phase):
            continue
        if made is not None and phase[made[0]] != FORWARD:
            continue
        op = None if v in facts.shared else flat.made_by(v)
        start, end = facts.op_span(op) if op else facts.spans[v]
        size = facts.buffers(v) * _local_bytes(analysed.decided, v)
        if size and start <= turn < end - 1:
            while made is not None and flat.ops[made[0]].node.op == "name":
                made = flat.maker.get(flat.ops[made[0]].reads[0])
            node = None if made is None else flat.ops[made[0]].node
            yield Left(KEPT, node.op if node else CARRIED, node.source if node else "", size, 0.0)


def _local_bytes(decided: Decided, v: int) -> float:
    flat, plan = decided.builder.flat, decided.plan
    state = plan.states[v]
    if state is None and v in flat.maker:
        i, k = flat.maker[v]
        strategy = plan.strategies[i]
        state = None if strategy is None else strategy.results[k]
    return 0.0 if state is None else state.local_bytes(flat.values[v].type, plan.mesh)
