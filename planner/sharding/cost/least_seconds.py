"""Bound of a step: the sum of its operations, each split in its own best way.

One program runs all of its ops, one after the other, on each of D devices:

    T  >=  sum over ops of  min over ways to split it n-fold, n a divisor of D, of  t_op

In a pipeline each op runs on some of the devices only; the bound is that of the work of all D:

    T  >=  1 / D  *  sum over ops of  min over ways to split it n-fold of  n * t_op

Whatever the mesh or the stages are, each op of the step runs in one of these ways, fused as in the
whole program; communication, idle time, recomputation and the effects of the memory limit come on
top. The bounds serve where a search had no time to find a better one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel import ComputeModel, OpWork, op_seconds
from ir import COUNTS, FactorSpec, lookup
from ir.analysis import operand_types

from ..problem.facts import Facts

MOST_WAYS = 50_000
Floats = NDArray[np.float64]


def least_step_s(
    facts: Facts, compute: ComputeModel, devices: int, known: dict[object, float] | None = None
) -> float:
    """Bound of the step over all plans in one program, on any mesh of `devices` devices [s].

    Args:
        facts: facts of the program.
        compute: prices of ops on a device.
        devices: number of devices.
        known: as of `least_each_s`.
    """
    each = least_each_s(facts, compute, devices, range(len(facts.flat.ops)), known)
    return sum(seconds * facts.flat.ops[i].weight for i, seconds in each.items())


def least_work_s(
    facts: Facts, compute: ComputeModel, sizes: Collection[int], ops: Collection[int]
) -> float:
    """Bound of the device-seconds of a step over all shardings on sub-meshes.

    Args:
        facts: facts of the program.
        compute: prices of ops on a device.
        sizes: devices of the sub-meshes to choose from.
        ops: flat numbers of the ops to include.
    """
    seconds = _each_s(facts, compute, sizes, ops, {}, apart=True)
    return sum(s * facts.flat.ops[i].weight for i, s in seconds)


def least_each_s(
    facts: Facts,
    compute: ComputeModel,
    devices: int,
    ops: Collection[int],
    known: dict[object, float] | None = None,
) -> dict[int, float]:
    """Least seconds of one run of each op, split in its own best way over the devices.

    Args:
        facts: facts of the program.
        compute: prices of ops on a device.
        devices: number of devices.
        ops: flat numbers of the ops.
        known: seconds of equal ops on as many such devices, of earlier calls.
    """
    known = {} if known is None else known
    return dict(_each_s(facts, compute, (devices,), ops, known, apart=False))


def least_in_chunks_s(
    facts: Facts, compute: ComputeModel, devices: int, i: int, factor: str
) -> tuple[float, dict[int, float]]:
    """Least seconds of one run of an op, and by the number of chunks those of one, split likewise.

    Args:
        facts: facts of the program.
        compute: prices of ops on a device.
        devices: number of devices.
        i: flat number of the op.
        factor: that is cut into chunks.
    """
    work = _work(facts, i, compute)
    rows = _splits(work.spec, (devices,))
    if len(rows) > MOST_WAYS:
        return 0.0, dict.fromkeys(COUNTS, 0.0)
    ways = _ways(work.spec, rows)
    seconds = np.broadcast_to(op_seconds(work, ways, compute), (len(rows),))
    best = {name: w[[int(seconds.argmin())]] for name, w in ways.items()}
    parts = {
        n: float(op_seconds(work, best | {factor: best[factor] * n}, compute)[0]) for n in COUNTS
    }
    return float(seconds.min()), parts


def least_inside_s(
    facts: Facts,
    compute: ComputeModel,
    sizes: Sequence[int],
    ops: Collection[int],
    borders: Set[int],
    known: dict[object, tuple[float, ...]],
) -> dict[int, tuple[float, ...]]:
    """Least seconds of one run of each op, also where its program is a part of a larger one.

    A fusion that reads or makes a value on the border may be a part of one outside: it reads and
    writes the values there at no cost, starts no kernel of its own, and hides its arithmetic.

    Args:
        facts: facts of the program.
        compute: prices of ops on a device.
        sizes: numbers of devices, each with seconds of its own: an op is split over all or some.
        ops: flat numbers of the ops.
        borders: flat values that the program takes from others, or gives to them.
        known: seconds of equal ops for these sizes, of earlier calls.
    """
    found: dict[int, tuple[float, ...]] = {}
    outer = outer_kernels(facts, borders)
    for i in ops:
        if facts.is_made(facts.flat.ops[i]):
            inner = replace(_inside(facts, i, compute, borders, outer), moved=())
            key = _key(inner)
            if key not in known:
                known[key] = _least_of_each(inner, compute, sizes)
            found[i] = known[key]
    return found


def border_s(
    facts: Facts, compute: ComputeModel, ops: Collection[int], borders: Set[int],
    known: dict[object, float],
) -> float:  # fmt: skip
    """Most seconds that ops save where their program becomes a part of a larger one.

    That of ops that are not split at all: others read and write less at the border.

    Args:
        facts: facts of the program.
        compute: prices of ops on a device.
        ops: flat numbers of the ops.
        borders: as of `least_inside_s`.
        known: seconds of equal ops on one device, of earlier calls.
    """
    outer, found = outer_kernels(facts, borders), 0.0
    for i in ops:
        op = facts.flat.ops[i]
        if facts.is_made(op) and not outer.isdisjoint(facts.traffic.kernels[i]):
            each = (_work(facts, i, compute), _inside(facts, i, compute, borders, outer))
            alone, inside = (_known_s(work, compute, known) for work in each)
            found += op.weight * (alone - inside)
    return found


def _known_s(work: OpWork, compute: ComputeModel, known: dict[object, float]) -> float:
    """Seconds of an op on one device, memoised."""
    key = _key(work)
    if key not in known:
        known[key] = _least(work, compute, (1,), apart=False)
    return known[key]


def outer_kernels(facts: Facts, borders: Set[int]) -> set[int]:
    """Fusions that read or make values on the border."""
    return {
        kernel for i, op in enumerate(facts.flat.ops) for kernel in facts.traffic.kernels[i]
        if not borders.isdisjoint(op.reads) or not borders.isdisjoint(op.outputs)
    }  # fmt: skip


def _inside(
    facts: Facts, i: int, compute: ComputeModel, borders: Set[int], outer: Set[int]
) -> OpWork:
    """An op as a part of a larger program; arguments as of `least_inside_s` and `outer_kernels`.

    Fusions that may be larger there take at least what these ops move; their arithmetic may hide.
    """
    op, work = facts.flat.ops[i], _work(facts, i, compute)
    if outer.isdisjoint(facts.traffic.kernels[i]):
        return work
    return replace(
        work,
        reads=tuple(k for k in facts.traffic.reads[i] if op.inputs[k] not in borders),
        writes=tuple(k for k in facts.traffic.writes[i] if op.outputs[k] not in borders),
        launches=0,
        computed=None if work.computed is None else 0,
    )


def _work(facts: Facts, i: int, compute: ComputeModel) -> OpWork:
    op = facts.flat.ops[i]
    types = operand_types(facts.flat, op)
    paid = facts.paid(i, compute)
    return OpWork(op.node, lookup(op.node.op), types, facts.spec(op), *paid)


def _each_s(
    facts: Facts,
    compute: ComputeModel,
    sizes: Collection[int],
    ops: Collection[int],
    known: dict[object, float],
    *,
    apart: bool,
) -> Iterator[tuple[int, float]]:
    """Op and least seconds of one run of it; with `apart` device-seconds."""
    for i in ops:
        op = facts.flat.ops[i]
        if not facts.is_made(op):
            continue
        work = _work(facts, i, compute)
        key = _key(work)
        if key not in known:
            known[key] = _least(work, compute, sizes, apart=apart)
        yield i, known[key]


def _key(work: OpWork) -> object:
    """What the seconds of an op follow from."""
    node = work.node
    return (node.op, work.operands, node.outputs, node.attrs, work.spec, work.reads, work.writes,
            work.launches, work.moved, work.computed)  # fmt: skip


def _least_of_each(work: OpWork, compute: ComputeModel, sizes: Sequence[int]) -> tuple[float, ...]:
    """Least seconds of one run of an op on each of some numbers of devices."""
    rows = _splits(work.spec, sizes)
    if len(rows) > MOST_WAYS:  # there are fewer for each number alone
        return tuple(_least(work, compute, (size,), apart=False) for size in sizes)
    seconds, parts = _seconds(work, compute, rows)
    return tuple(float(seconds[size % parts == 0].min()) for size in sizes)


def _seconds(
    work: OpWork, compute: ComputeModel, rows: Sequence[tuple[int, ...]]
) -> tuple[Floats, Floats]:
    """Seconds of one run of an op under each way to split it, and the number of its parts."""
    ways = _ways(work.spec, rows)
    seconds = np.broadcast_to(op_seconds(work, ways, compute), (len(rows),))
    return seconds, np.array(rows, dtype=np.float64).reshape(len(rows), -1).prod(axis=1)


def _least(work: OpWork, compute: ComputeModel, sizes: Collection[int], *, apart: bool) -> float:
    """Least seconds of one run of an op; with `apart` device-seconds."""
    rows = _splits(work.spec, sizes)
    if len(rows) > MOST_WAYS:
        return 0.0  # too many ways to try: 0 is a valid bound
    seconds, parts = _seconds(work, compute, rows)
    return float((seconds * parts if apart else seconds).min())


def _ways(spec: FactorSpec, rows: Sequence[tuple[int, ...]]) -> dict[str, NDArray[np.float64]]:
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(spec.names))
    return {name: table[:, k] for k, name in enumerate(spec.names)}


def _splits(spec: FactorSpec, sizes: Collection[int]) -> list[tuple[int, ...]]:
    """Parts of every factor, whose product divides the devices of some sub-mesh."""
    allowed = {n for d in sizes for n in range(1, d + 1) if d % n == 0}
    found: list[tuple[int, tuple[int, ...]]] = [(1, ())]
    for name, size in spec.sizes:
        able = spec.can_split(name) and size > 1
        most = [n for n in sorted(allowed) if size % n == 0] if able else [1]
        found = [(made * n, (*row, n)) for made, row in found for n in most if made * n in allowed]
        if len(found) > MOST_WAYS:
            break
    return [row for _, row in found]
