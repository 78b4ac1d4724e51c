"""What a plan keeps in the memory of the host, and the copies that bring it there and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ir import HOST_COPIES

from ..lower import Decided


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copy between a device and its host, all of its runs in one call.

    op: one of `ir.HOST_COPIES`.
    nbytes: of a device.
    exposed_s: the part of `seconds` that no compute runs beside.
    """

    op: str
    count: float
    nbytes: float
    seconds: float
    exposed_s: float
    source: str


def host_copies(decided: Decided) -> Iterator[HostCopy]:
    """The copies of a plan, in program order."""
    builder, flat = decided.builder, decided.builder.flat
    for i in decided.built.op_node:
        op, strategy = flat.ops[i], decided.plan.strategies[i]
        if op.node.op in HOST_COPIES and strategy is not None:
            menu, copies = (strategy,), builder.host_copies
            each = copies.nbytes(i, menu), copies.seconds(i, menu), copies.exposed_s(i, menu)
            nbytes, seconds, exposed = (float(x[0]) * op.weight for x in each)
            yield HostCopy(op.node.op, op.weight, nbytes, seconds, exposed, op.node.source)


def host_bytes(decided: Decided) -> float:
    """Memory of the host that one device takes at its peak [byte]."""
    facts, plan = decided.builder.facts, decided.plan
    change = np.zeros(facts.flat.clock + 2)
    # a slice is written into its stack, and read out of it, by the copy itself
    slices = {link.source for link in facts.flat.links if link.target in facts.stack_of}
    slices |= {link.target for link in facts.flat.links if link.lift}
    for v in sorted(facts.on_host - slices):
        buffers, state = facts.host_buffers(v), plan.states[v]
        if buffers and state is not None:
            size = buffers * state.local_bytes(facts.flat.values[v].type, plan.mesh)
            start, end = facts.spans[v]
            change[start] += size
            change[min(end, len(change) - 1)] -= size
    return float(np.cumsum(change).max())
