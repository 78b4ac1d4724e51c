"""The account of a plan: every collective it runs, its seconds by cause, its memory over time.

It walks the decisions the way the emitted program does, so that its total must equal the
objective of the solver; a test holds the two against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel import Step, full_bytes, wire_bytes
from ir import Mesh, Sharding, TensorType

from .hostmemory import host_memory, is_host
from .intra.build import Builder
from .intra.records import Built
from .states import port_state, state_of


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


@dataclass(frozen=True, slots=True)
class Move:
    """A value that changes its state on the way to its reader.

    `value` is its flat number and `op` that of the flat op before or after which it happens, -1
    where none reads or makes the value.
    `holds` says which of the two buffers the problem's nodes count already: before, after, both.
    """

    type: TensorType
    before: Sharding
    after: Sharding
    weight: float
    time: int
    cause: str
    holds: str
    op: int = -1
    value: int = -1


def moves(builder: Builder, built: Built, choice: tuple[int, ...]) -> Iterator[Move]:
    """Every change of state in one step."""
    for move in (
        *_op_moves(builder, built, choice),
        *_link_moves(builder, built, choice),
        *_output_moves(builder, built, choice),
    ):
        if move.before != move.after:
            yield move


def _op_moves(builder: Builder, built: Built, choice: tuple[int, ...]) -> Iterator[Move]:
    flat, free = builder.flat, builder.traffic.free
    made: dict[int, Sharding] = {}
    for i, node in sorted(built.op_node.items()):
        op = flat.ops[i]
        strategy = built.refs[node].menu[choice[node]]
        label = f"{op.node.op} {op.node.source}".strip()
        for v, after in zip(op.inputs, strategy.operands, strict=True):
            if isinstance(v, int) and not free[v]:
                before = made.get(v)
                if before is None:
                    before = made[v] = state_of(builder, built, choice, v)
                if before == after:
                    continue
                value = flat.values[v]
                cause = value.name if value.kind == "argument" else label
                at = builder.facts.at(op)
                yield Move(value.type, before, after, op.weight, at, cause, "before", i, v)
        for v, before in zip(op.outputs, strategy.results, strict=True):
            if v in built.value_node:
                after = state_of(builder, built, choice, v)
                if before != after:
                    type_, at = flat.values[v].type, builder.facts.at(op)
                    yield Move(type_, before, after, op.weight, at, label, "after", i, v)


def _link_moves(builder: Builder, built: Built, choice: tuple[int, ...]) -> Iterator[Move]:
    flat = builder.flat
    for link in flat.links:
        if link.source == link.target or builder.traffic.free[link.source]:
            continue
        before = state_of(builder, built, choice, link.source)
        after = port_state(built, choice, link.target, link.lift)
        value = flat.values[link.source]
        cause = value.name if value.kind == "argument" else flat.values[link.target].name
        yield Move(
            value.type, before, after, link.weight, link.time, cause, "both", value=link.source
        )


def _output_moves(builder: Builder, built: Built, choice: tuple[int, ...]) -> Iterator[Move]:
    flat = builder.flat
    for position, v in enumerate(flat.outputs):
        if isinstance(v, int) and not builder.traffic.free[v]:
            node = built.out_node[position]
            before = state_of(builder, built, choice, v)
            after = built.refs[node].states[choice[node]]
            tied = builder.tied_in.get(position)
            cause = flat.values[tied].name if tied is not None else f"result {position}"
            type_ = flat.values[v].type
            holds = "before" if tied is None else "both"
            yield Move(type_, before, after, 1.0, flat.clock - 1, cause, holds, value=v)


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
    # what one op moves passes together; ops, and what enters regions, one after the other
    passing: dict[int, dict[object, int]] = {}
    widest: dict[int, int] = {}
    ends: dict[int, int] = {}
    for n, move in enumerate(moves(builder, built, choice)):
        steps = reshard.path(move.type, move.before, move.after)
        if 0 <= move.time < len(memory):
            here = passing.setdefault(move.time, {})
            key = move.op if move.op >= 0 else ("apart", n)
            passes, wide = _passing_bytes(move, steps, mesh)
            here[key] = here.get(key, 0) + passes
            widest[move.time] = max(widest.get(move.time, 0), wide)
            each = (s.local_bytes(move.type, mesh) for s in (move.before, move.after))
            ends[move.time] = max(ends.get(move.time, 0), *each)
        for step in steps:
            kind = step.collective
            if kind is None:
                continue
            n = mesh.product(step.axes)
            sent = wire_bytes(kind, n, full_bytes(step, move.type, mesh))
            seconds = reshard.step_s(step, move.type)
            row = merged.setdefault((kind, step.axes, move.cause), [0.0, 0.0, 0.0])
            row[0] += sent * move.weight
            row[1] += move.weight
            row[2] += seconds * move.weight
            communication_s += seconds * move.weight
    for moment, here in passing.items():
        memory[moment] += max(here.values())
    if is_host(reshard.cluster):  # whose compiler does otherwise
        memory = host_memory(builder, built, choice)
    collectives = tuple(
        Collective(kind, axes, mesh.product(axes), sent, count, seconds, cause)
        for (kind, axes, cause), (sent, count, seconds) in merged.items()
    )
    ordered = tuple(sorted(collectives, key=lambda c: (-c.seconds, c.kind, c.axes, c.cause)))
    arguments = sum(
        float(built.lives.usage[built.value_node[v]][choice[built.value_node[v]]])
        for v in builder.flat.inputs
    )
    peak = float(memory.max()) if len(memory) else arguments
    return Account(
        compute_s + communication_s, compute_s, communication_s, ordered, peak, arguments, memory,
        widest.get(int(memory.argmax()), 0) if len(memory) else 0, built.taking_s(choice),
        ends.get(int(memory.argmax()), 0) if len(memory) else 0,
    )  # fmt: skip
