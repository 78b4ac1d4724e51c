"""Collectives that ops run themselves: the permutes of attention split along the sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costmodel import AttentionWork, hops_of, joint_axes
from ir import ATTENTION
from ir.analysis import operand_types

from ..lower import Decided


@dataclass(frozen=True, slots=True)
class Inside:
    """Permutes of one op, all of its runs in one call.

    sent_bytes: of a device.
    exposed_s: the part of `seconds` in which the op does not compute, or is slowed down.
    """

    axes: tuple[str, ...]
    count: float
    sent_bytes: float
    seconds: float
    exposed_s: float
    cause: str


def inside_ops(decided: Decided) -> Iterator[Inside]:
    """The permutes of each op of a plan that exchanges parts while it runs."""
    builder, built, plan = decided.builder, decided.built, decided.plan
    flat, cache = builder.flat, builder.cache
    for i in built.op_node:
        op, strategy = flat.ops[i], plan.strategies[i]
        spec = builder.spec(op)
        if op.node.op not in ATTENTION or strategy is None:
            continue
        axes, hops = joint_axes(spec, strategy, plan.mesh.names), None
        if axes:
            hops = hops_of(spec, (strategy,), cache.reshard, overlap=builder.overlap)
        if hops is None:
            continue
        parts = strategy.factor_axes(plan.mesh)
        ways = {n: np.array([float(plan.mesh.product(parts.get(n, ())))]) for n in spec.names}
        work = AttentionWork(op.node, operand_types(flat, op), ways)
        found = work.exchange(cache.compute, hops)
        count, sent, seconds, exposed = (
            float(x[0]) * op.weight
            for x in (found.count, found.sent_bytes, found.seconds, found.exposed_s)
        )
        cause = f"{op.node.op} {op.node.source}".strip()
        yield Inside(axes, count, sent, seconds, exposed, cause)
