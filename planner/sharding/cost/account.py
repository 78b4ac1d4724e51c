"""The account of a plan: every collective it runs, its seconds by cause, its memory over time.

It walks the decisions the way the emitted program does, so that its total must equal the
objective of the solver; a test holds the two against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel import Step, full_bytes, wire_bytes
from ir import Mesh, Sharding, TensorType

from ...common.surface import public_methods
from ..problem.build import Builder
from ..problem.records import Built
from ..problem.skeleton import Sites
from ..problem.states import state_at

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
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    bytes: float
    count: float
    seconds: float
    cause: str


@dataclass(frozen=True)
class Account:
    """Predicted time and memory of one step on one device.

    passing_bytes: largest buffer at the peak that exists only while a value changes its state.
    taking_s: of `compute_s`, in which a CPU takes new memory for results.
    ends_bytes: largest buffer that a value has before or after it changes its state then.
    """

    step_s: float
    compute_s: float
    communication_s: float
    collectives: tuple[Collective, ...]
    peak_bytes: float
    argument_bytes: float
    memory: NDArray[np.float64]
    passing_bytes: int = 0
    taking_s: float = 0.0
    ends_bytes: int = 0


class Move(NamedTuple):
    """A value that changes its state on the way to its reader.

    `value` is its flat number and `op` that of the flat op before or after which it happens, -1
    where none reads or makes the value; `join` is that of the outline.
    `holds` says which of the two buffers the problem's nodes count already: before, after, both.
    """

    before: Sharding
    after: Sharding
    weight: float
    join: int
    type: TensorType
    time: int
    cause: str
    holds: str
    op: int
    value: int


def moves(builder: Builder, built: Built, choice: tuple[int, ...]) -> Iterator[Move]:
    """Every change of state in one step.

    What is joined alike changes alike: only the places of joins that change anything are visited.
    """
    outline = built.outline
    states = [
        (state_at(built, choice, join.source), state_at(built, choice, join.target))
        if join.how == "reshard"
        else None
        for join in outline.joins
    ]
    changes = np.array([pair is not None and pair[0] != pair[1] for pair in states], dtype=np.bool_)
    for n in np.flatnonzero(changes[outline.sites.join]).tolist():
        join = int(outline.sites.join[n])
        pair = states[join]
        assert pair is not None
        if n not in outline.told:
            outline.told[n] = _told(builder, outline.sites, n)
        yield Move(*pair, outline.joins[join].weight, join, *outline.told[n])


def _told(builder: Builder, sites: Sites, n: int) -> tuple[TensorType, int, str, str, int, int]:
    """What is true on every mesh of a place at which a value may change its state.

    Type of the value, time, cause, holds, op and number of the value, as `Move` has them.
    """
    flat, i, v = builder.flat, int(sites.op[n]), int(sites.value[n])
    value, link, output = flat.values[v], int(sites.link[n]), int(sites.output[n])
    argument = value.name if value.kind == "argument" else ""
    if i >= 0:
        op, made = flat.ops[i], bool(sites.made[n])
        label = f"{op.node.op} {op.node.source}".strip()
        time, cause = builder.facts.at(op), label if made else argument or label
        holds = "after" if made else "before"
    elif link >= 0:
        target, time = flat.links[link].target, flat.links[link].time
        cause, holds = argument or flat.values[target].name, "both"
    else:
        tied, time = builder.tied_in.get(output), flat.clock - 1
        cause = f"result {output}" if tied is None else flat.values[tied].name
        holds = "before" if tied is None else "both"
    return value.type, time, cause, holds, i, v


def _taken_up(
    builder: Builder, built: Built, choice: tuple[int, ...]
) -> Iterator[tuple[int, int, int]]:
    """Moments [start, end) and bytes of partial sums that are counted as waiting, but do not.

    The problem's nodes know what makes them, not how they are read, and count them as if they
    were reduced.
    """
    facts, flat = builder.facts, builder.flat
    for v, (j, k) in facts.taken_up.items():
        i, position = facts.maker[v]
        if i not in built.op_node or j not in built.op_node:
            continue
        made = built.refs[built.op_node[i]].menu[choice[built.op_node[i]]].results[position]
        read = built.refs[built.op_node[j]].menu[choice[built.op_node[j]]].operands[k]
        if made.partial and made == read:
            size = made.local_bytes(flat.values[v].type, builder.mesh)
            yield flat.ops[i].time, facts.at(flat.ops[i]), size


def _passing_bytes(move: Move, steps: tuple[Step, ...], mesh: Mesh) -> tuple[int, int]:
    """Bytes that exist only while a value changes its state, and the largest state on the way.

    A gather along another dimension than the first writes shard after shard, which is another
    order of the elements: its result is copied into the buffer that the nodes count. A slice is
    part of the op that reads it, unless that is a collective.
    """
    on_the_way = [
        step.after.local_bytes(move.type, mesh) if step.collective or then else 0
        for step, then in zip(steps, [*(s.collective for s in steps[1:]), None], strict=True)
    ]
    if move.holds != "before" and not (steps and _is_strided(steps[-1], move.type)):
        on_the_way = on_the_way[:-1]
    raw = move.before.local_bytes(move.type, mesh) if move.holds == "after" else 0
    widest = max(on_the_way, default=0)
    return raw + widest, widest


def _is_strided(step: Step, type_: TensorType) -> bool:
    return step.kind == "all-gather" and math.prod(type_.shape[: step.dim]) > 1


@dataclass(frozen=True, slots=True)
class _Priced:
    """What a change of state costs.

    passes, widest: as `_passing_bytes` has them; ends: the larger one of its two states [byte].
    runs: kind, axes, bytes and seconds of its collectives, all runs together.
    """

    passes: int
    widest: int
    ends: int
    runs: tuple[tuple[str, tuple[str, ...], float, float], ...]


def _priced(builder: Builder, move: Move) -> _Priced:
    reshard, mesh = builder.cache.reshard, builder.mesh
    steps = reshard.path(move.type, move.before, move.after)
    runs: list[tuple[str, tuple[str, ...], float, float]] = []
    for step in steps:
        kind = step.collective
        if kind is not None:
            n = mesh.product(step.axes)
            sent = wire_bytes(kind, n, full_bytes(step, move.type, mesh))
            seconds = reshard.step_s(step, move.type)
            runs.append((kind, step.axes, sent * move.weight, seconds * move.weight))
    ends = max(s.local_bytes(move.type, mesh) for s in (move.before, move.after))
    return _Priced(*_passing_bytes(move, steps, mesh), ends, tuple(runs))


def account(builder: Builder, built: Built, choice: tuple[int, ...]) -> Account:
    """Adds everything up."""
    reshard = builder.cache.reshard
    mesh = builder.mesh
    compute_s = built.compute_s(choice)
    memory = built.lives.memory(choice)
    for start, end, size in _taken_up(builder, built, choice):
        memory[start:end] -= size
    merged: dict[tuple[str, tuple[str, ...], str], list[float]] = {}
    communication_s = 0.0
    priced: dict[tuple[int, str], _Priced] = {}
    # what one op moves passes together; ops, and what enters regions, one after the other
    passing: dict[int, dict[object, int]] = {}
    widest: dict[int, int] = {}
    ends: dict[int, int] = {}
    for n, move in enumerate(moves(builder, built, choice)):
        each = priced.get((move.join, move.holds))
        if each is None:
            each = priced[move.join, move.holds] = _priced(builder, move)
        if 0 <= move.time < len(memory):
            here = passing.setdefault(move.time, {})
            key = move.op if move.op >= 0 else ("apart", n)
            here[key] = here.get(key, 0) + each.passes
            widest[move.time] = max(widest.get(move.time, 0), each.widest)
            ends[move.time] = max(ends.get(move.time, 0), each.ends)
        for kind, axes, sent, seconds in each.runs:
            row = merged.setdefault((kind, axes, move.cause), [0.0, 0.0, 0.0])
            row[0] += sent
            row[1] += move.weight
            row[2] += seconds
            communication_s += seconds
    for moment, here in passing.items():
        memory[moment] += max(here.values())
    collectives = tuple(
        Collective(kind, axes, mesh.product(axes), sent, count, seconds, cause)
        for (kind, axes, cause), (sent, count, seconds) in merged.items()
    )
    ordered = tuple(sorted(collectives, key=lambda c: (-c.seconds, c.kind, c.axes, c.cause)))
    arguments = sum(
        float(built.lives.usage[built.value_node[v]][choice[built.value_node[v]]])
        for v in builder.flat.inputs
    )
    if reshard.cluster.has_cpus:
        memory = memory_on_cpus(memory, arguments)
    peak = float(memory.max()) if len(memory) else arguments
    return Account(
        compute_s + communication_s, compute_s, communication_s, ordered, peak, arguments, memory,
        widest.get(int(memory.argmax()), 0) if len(memory) else 0, built.taking_s(choice),
        ends.get(int(memory.argmax()), 0) if len(memory) else 0,
    )  # fmt: skip


def memory_on_cpus(memory: NDArray[np.float64], arguments: float) -> NDArray[np.float64]:
    """Memory on CPU devices [byte]: arguments + 1.78 (memory - arguments).

    Args:
        memory: of the general model at each moment, arguments included [byte].
        arguments: held from the start [byte].
    """
    return memory + (CPU_TEMPORARIES - 1.0) * np.maximum(memory - arguments, 0.0)
