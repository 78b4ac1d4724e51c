"""The account of a plan: every collective it runs, its seconds by cause, its memory over time.

It sums the lowered plan, and its total must equal the objective of the solver, which a test checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from costmodel import INTERFERENCE, ReshardModel, full_bytes, wire_bytes
from ir import Change, LoweredPlan, Mesh, Reshard
from ir.analysis import Place

from ...common.surface import public_methods
from ..lower import Decided
from ..problem.facts import Facts
from ..problem.windows import BESIDE
from .host_memory import HostCopy, host_bytes, host_copies
from .in_parts import BesideProduct, beside_product
from .inside_ops import Inside, inside_ops
from .last_reshards import read_beside_bytes, stays_bytes
from .stacks import is_strided, merged_stacks, turned_stacks

# XLA's CPU compiler fuses less and computes 16-bit numbers in 32 bits: its temporaries over those
# of the general model, median of 33 plans, 0.9 to 2.9 without embedding tables (the rows of `host`
# and of `gpu-aot` in benchmarks/results/2026-11-22/verify.json).
CPU_TEMPORARIES = 1.78


@public_methods
@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of collective over one set of axes for one cause.

    bytes: sent by each device in all `count` runs [byte], ring convention.
    seconds: of all runs, predicted.
    exposed_s: the part of `seconds` in which compute waits or is slowed down.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    bytes: float
    count: float
    seconds: float
    cause: str
    exposed_s: float


@dataclass(frozen=True, slots=True)
class WindowSeconds:
    """Seconds of a window of the step, all rounds of its loop together.

    body: place of its loop or branch; () for the program.
    ops: number of its ops.
    communication_s: of its collectives; hideable_s: the part beside which there is an op to run.
    exposed_s: the part in which compute waits or is slowed down.
    """

    body: Place
    ops: int
    compute_s: float
    communication_s: float
    hideable_s: float
    exposed_s: float


@dataclass(frozen=True)
class Account:
    """Predicted time and memory of one step on one device.

    step_s: compute_s + exposed_s.
    communication_s: of all collectives, those that ops run themselves included.
    exposed_s: the part of it in which compute waits or is slowed down.
    seconds, exposed: of each reshard of the lowered plan [s].
    window_of: its window; empty where there are no windows.
    windows: the windows of overlap; none where communication and compute take turns.
    passing_bytes: largest transient buffer of a reshard at the peak.
    taking_s: of `compute_s`, in which a CPU takes new memory for results.
    ends_bytes: largest buffer that a value has before or after it changes its state then.
    inside: permutes that ops run themselves.
    host_copies: copies to and from the host's memory; what of them nothing runs beside is part of
        `compute_s`.
    host_bytes: largest amount of memory of the host that a device takes [byte].
    """

    step_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    collectives: tuple[Collective, ...]
    seconds: tuple[float, ...]
    exposed: tuple[float, ...]
    window_of: tuple[int, ...]
    windows: tuple[WindowSeconds, ...]
    peak_bytes: float
    argument_bytes: float
    memory: NDArray[np.float64]
    passing_bytes: int = 0
    taking_s: float = 0.0
    ends_bytes: int = 0
    inside: tuple[Inside, ...] = ()
    host_copies: tuple[HostCopy, ...] = ()
    host_bytes: float = 0.0


def held_at(facts: Facts, reshard: Reshard) -> tuple[int, str]:
    """Moment of a reshard, and which of its buffers the problem's nodes count then.

    Returns:
        Moment, and which of the two buffers: "before", "after" or "both".
    """
    passage = reshard.passage
    if passage.op >= 0:
        made = passage.site.at == "result"
        return facts.at(facts.flat.ops[passage.op]), "after" if made else "before"
    if passage.link >= 0:
        return passage.time, "both"
    return passage.time, "both" if passage.site.position in facts.overwriting else "before"


def _as_compiled(decided: Decided, moments: int) -> NDArray[np.float64]:
    """Bytes that a compiler keeps beyond the problem's nodes, or does not keep, at each moment."""
    found = np.zeros(moments)
    for start, end, size in turned_stacks(decided):
        found[start:end] += size
    less = chain(_not_waiting(decided.builder.facts, decided.plan), merged_stacks(decided))
    for start, end, size in less:
        found[start:end] -= size
    return found


def _not_waiting(facts: Facts, plan: LoweredPlan) -> Iterator[tuple[int, int, int]]:
    """Moments [start, end) and bytes of partial sums that are counted as waiting, but do not wait.

    The problem's nodes depend on the makers of values, not on their readers, and count these
    partial sums as if they were reduced.
    """
    flat = plan.flat
    for v, (j, k) in facts.overwriters.items():
        i, position = flat.maker[v]
        maker, reader = plan.strategies[i], plan.strategies[j]
        if maker is None or reader is None:
            continue
        made = maker.results[position]
        if made.partial and made == reader.operands[k]:
            size = made.local_bytes(flat.values[v].type, plan.mesh)
            yield flat.ops[i].time, facts.at(flat.ops[i]), size


def _passing_bytes(change: Change, holds: str, mesh: Mesh) -> tuple[int, int, int]:
    """Bytes of a reshard's transient buffers, of its largest state on the way, and of its last one.

    A gather along another dimension than the first writes shard after shard, which is another order
    of the elements: its result is copied into the buffer that the nodes count. A slice is part of
    the op that reads it, unless it is a collective.
    """
    steps, type_ = change.steps, change.type
    on_the_way = [
        step.after.local_bytes(type_, mesh) if step.collective or then else 0
        for step, then in zip(steps, [*(s.collective for s in steps[1:]), None], strict=True)
    ]
    if holds != "before" and not (steps and is_strided(steps[-1], type_)):
        on_the_way = on_the_way[:-1]
    raw = change.before.local_bytes(type_, mesh) if holds == "after" else 0
    widest = max(on_the_way, default=0)
    return raw + widest, widest, on_the_way[-1] if on_the_way else 0


@dataclass(frozen=True, slots=True)
class _Priced:
    """Costs of a change of state.

    passes, widest, last: as `_passing_bytes` has them; ends: larger one of its two states [byte].
    runs: kind, axes, bytes and seconds of its collectives, all runs together.
    """

    passes: int
    widest: int
    last: int
    ends: int
    runs: tuple[tuple[str, tuple[str, ...], float, float], ...]

    @property
    def seconds(self) -> float:
        return sum(run[-1] for run in self.runs)


def _priced_in_parts(found: BesideProduct) -> _Priced:
    held, runs = found.held_bytes, (found.kind, found.axes, found.sent_bytes, found.seconds)
    return _Priced(held, held, held, held, (runs,))


def _priced(reshard: ReshardModel, moved: Reshard, holds: str) -> _Priced:
    change, weight, mesh = moved.change, moved.weight, reshard.mesh
    runs: list[tuple[str, tuple[str, ...], float, float]] = []
    for step in change.steps:
        kind = step.collective
        if kind is not None:
            n = mesh.product(step.axes)
            sent = wire_bytes(kind, n, full_bytes(step, change.type, mesh))
            seconds = reshard.step_s(step, change.type)
            runs.append((kind, step.axes, sent * weight, seconds * weight))
    ends = max(s.local_bytes(change.type, mesh) for s in (change.before, change.after))
    return _Priced(*_passing_bytes(change, holds, mesh), ends, tuple(runs))


def account(decided: Decided) -> Account:
    """Adds up the collectives, seconds and bytes of a plan."""
    builder, built, choice, plan = decided.builder, decided.built, decided.choice, decided.plan
    reshard, facts, mesh = builder.cache.reshard, builder.facts, plan.mesh
    inside = tuple(inside_ops(decided))
    exposed_inside_s = sum((each.exposed_s for each in inside), 0.0)
    compute_s = built.compute_s(choice) - exposed_inside_s
    memory = built.live_intervals.memory(choice)
    memory += _as_compiled(decided, len(memory))
    merged: dict[tuple[str, tuple[str, ...], str], list[float]] = {}
    priced: dict[tuple[int, float, str], _Priced] = {}  # by change, which many sites share
    # transient buffers of one op coexist; those of ops and region entries follow each other
    passing: dict[int, dict[object, int]] = {}
    staying: dict[int, int] = {}
    widest: dict[int, int] = {}
    ends: dict[int, int] = {}
    rows: list[_Priced] = []
    in_parts = [beside_product(decided, moved) for moved in plan.reshards]
    for n, (moved, parts) in enumerate(zip(plan.reshards, in_parts, strict=True)):
        (time, holds), op = held_at(facts, moved), moved.passage.op
        key = id(moved.change), moved.weight, holds
        each = priced.get(key) if parts is None else _priced_in_parts(parts)
        if each is None:
            each = priced[key] = _priced(reshard, moved, holds)
        rows.append(each)
        if 0 <= time < len(memory):
            here = passing.setdefault(time, {})
            together = op if op >= 0 else ("apart", n)
            stays = stays_bytes(facts, moved, each.last, mesh)
            staying[time] = staying.get(time, 0) + stays
            here[together] = here.get(together, 0) + each.passes - stays
            widest[time] = max(widest.get(time, 0), each.widest)
            ends[time] = max(ends.get(time, 0), each.ends)
    exposed, window_of, windows = _overlapped(decided, [row.seconds for row in rows], in_parts)
    for moved, parts, each, exposed_s in zip(plan.reshards, in_parts, rows, exposed, strict=True):
        share = exposed_s / each.seconds if each.seconds > 0.0 else 0.0
        for kind, axes, sent, seconds in each.runs:
            cause = moved.cause if parts is None else f"{moved.cause}, {parts.words}"
            row = merged.setdefault((kind, axes, cause), [0.0, 0.0, 0.0, 0.0])
            row[0] += sent
            row[1] += moved.weight if parts is None else parts.count
            row[2] += seconds
            row[3] += seconds * share
    for own in inside:
        row = merged.setdefault((own.kind, own.axes, own.cause), [0.0, 0.0, 0.0, 0.0])
        figures = own.sent_bytes, own.count, own.seconds, own.exposed_s
        row[:] = [a + b for a, b in zip(row, figures, strict=True)]
    for moment, here in passing.items():
        memory[moment] += max(here.values()) + staying[moment]
    if built.beside_s is not None and staying.get(facts.flat.clock - 1, 0):
        memory[facts.flat.clock - 1] += read_beside_bytes(facts, plan)
    collectives = tuple(
        Collective(kind, axes, mesh.product(axes), sent, count, seconds, cause, exposed_s)
        for (kind, axes, cause), (sent, count, seconds, exposed_s) in merged.items()
    )
    ordered = tuple(sorted(collectives, key=lambda c: (-c.seconds, c.kind, c.axes, c.cause)))
    arguments = sum(
        float(built.live_intervals.usage[built.value_node[v]][choice[built.value_node[v]]])
        for v in builder.flat.inputs
    )
    if reshard.cluster.has_cpus:
        memory = memory_on_cpus(memory, arguments)
    peak = float(memory.max()) if len(memory) else arguments
    exposed_s = sum(exposed, exposed_inside_s)
    communication_s = sum((row.seconds for row in (*rows, *inside)), 0.0)
    return Account(
        compute_s + exposed_s, compute_s, communication_s, exposed_s, ordered,
        tuple(row.seconds for row in rows), tuple(exposed), window_of, windows, peak, arguments,
        memory,
        widest.get(int(memory.argmax()), 0) if len(memory) else 0, built.taking_s(choice),
        ends.get(int(memory.argmax()), 0) if len(memory) else 0, inside,
        tuple(host_copies(decided)), host_bytes(decided),
    )  # fmt: skip


def _overlapped(
    decided: Decided, seconds: Sequence[float], in_parts: Sequence[BesideProduct | None]
) -> tuple[list[float], tuple[int, ...], tuple[WindowSeconds, ...]]:
    """Exposed seconds and window of each reshard of a plan, and the windows of its step.

    Of a collective of n seconds, h = min(n, i L) may run beside the L seconds of compute that
    neither lead to it nor follow from it, which it slows down by the factor i of interference.
    Where they are of the next round of a loop, the last round's collective has none. A window
    hides at most a share b of its compute C,

        exposed = sum n - min(b C, sum h / i)

    and each of its collectives has its share of that.

    Args:
        decided: the plan.
        seconds: of each of its reshards, all runs together.
        in_parts: likewise, of those that run in parts beside their product.
    """
    built = decided.built
    if built.beside_s is None:
        return list(seconds), (), ()
    windows, numbers = built.outline.windows, built.outline.passage_numbers
    at, saved = list[int](), list[float]()
    total, hideable, short = (np.zeros(windows.count) for _ in range(3))
    for moved, spent, parts in zip(decided.plan.reshards, seconds, in_parts, strict=True):
        number = numbers[moved.passage]
        hidden = min(spent, INTERFERENCE * float(built.beside_s[number]) * moved.weight)
        hidden *= float(windows.rounds[number])
        if parts is not None:
            hidden = parts.hidden_s * INTERFERENCE
        at.append(int(windows.passage[number]))
        saved.append(hidden / INTERFERENCE)
        total[at[-1]] += spent
        hideable[at[-1]] += hidden
        short[at[-1]] += saved[-1]
    most = np.zeros(windows.count)
    for work in built.problem.work:
        most[work.window] += work.seconds[decided.choice[work.node]]
    share = np.divide(np.minimum(most, short), short, out=np.zeros_like(short), where=short > 0)
    exposed = [n - s * float(share[w]) for n, s, w in zip(seconds, saved, at, strict=True)]
    left = np.bincount(at, exposed, windows.count) if at else np.zeros(windows.count)
    ops = np.bincount(windows.op[list(built.outline.op_node)], minlength=windows.count)
    rows = zip(windows.body, ops, most / BESIDE, total, hideable, left, strict=True)
    return (
        exposed,
        tuple(at),
        tuple(
            WindowSeconds(body, int(count), *(float(s) for s in sums))
            for body, count, *sums in rows
        ),
    )


def memory_on_cpus(memory: NDArray[np.float64], arguments: float) -> NDArray[np.float64]:
    """Memory on CPU devices [byte]: arguments + 1.78 (memory - arguments).

    Args:
        memory: memory of the general model at each moment, arguments included [byte].
        arguments: memory of the arguments, held from the start [byte].
    """
    return memory + (CPU_TEMPORARIES - 1.0) * np.maximum(memory - arguments, 0.0)
