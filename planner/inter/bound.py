"""No pipeline is faster than the work of a step, each op split as is best for it, on all devices.

    T  >=  1 / D  *  sum over ops of  min over ways to split it n-fold of  n * t_op

Whatever the stages are, each op of the step runs in one of these ways on one of D devices, fused as
in the whole program: communication, idle time, what is computed again and what memory forces come
on top.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from costmodel import ComputeModel, OpWork, op_seconds
from ir import FactorSpec, lookup

from ..flatten import FlatOp
from ..intra.facts import Facts
from ..intra.records import operand_types

MOST_WAYS = 50_000


def least_work_s(
    facts: Facts, compute: ComputeModel, sizes: Collection[int], ops: Collection[int]
) -> float:
    """Device-seconds of a step below which no sharding of it on sub-meshes comes.

    Args:
        facts: of the program.
        compute: prices of a device.
        sizes: devices of sub-meshes.
        ops: those that count, by their number.
    """
    known: dict[object, float] = {}
    total = 0.0
    for i in ops:
        op = facts.flat.ops[i]
        if not facts.is_made(op):
            continue
        writes = tuple(k for k, v in enumerate(op.outputs) if facts.traffic.stored[v])
        reads, launches = facts.traffic.reads[i], facts.traffic.launches[i]
        types = operand_types(facts.flat, op)
        key = (op.node.op, types, op.node.outputs, op.node.attrs, reads, writes, launches)
        if key not in known:
            work = OpWork(
                op.node, lookup(op.node.op), types, facts.spec(op), reads, writes, launches
            )
            known[key] = _least(op, work, compute, sizes)
        total += known[key] * op.weight
    return total


def _least(op: FlatOp, work: OpWork, compute: ComputeModel, sizes: Collection[int]) -> float:
    """Device-seconds of one run of an op, split as is best."""
    rows = _splits(work.spec, sizes)
    if len(rows) > MOST_WAYS:
        return 0.0  # too many to look at; nothing is claimed of it
    names = work.spec.names
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    ways = {name: table[:, k] for k, name in enumerate(names)}
    seconds = np.broadcast_to(op_seconds(work, ways, compute), (len(rows),))
    return float((seconds * table.prod(axis=1)).min())


def _splits(spec: FactorSpec, sizes: Collection[int]) -> list[tuple[int, ...]]:
    """Parts of every factor; what they make together divides some sub-mesh."""
    allowed = {n for d in sizes for n in range(1, d + 1) if d % n == 0}
    found: list[tuple[int, tuple[int, ...]]] = [(1, ())]
    for name, size in spec.sizes:
        able = spec.kind(name) not in ("whole", "window") and size > 1
        most = [n for n in sorted(allowed) if size % n == 0] if able else [1]
        found = [(made * n, (*row, n)) for made, row in found for n in most if made * n in allowed]
        if len(found) > MOST_WAYS:
            break
    return [row for _, row in found]
