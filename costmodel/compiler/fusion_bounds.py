"""What bounds each fusion on a device: what it moves, or what it computes.

A fusion computes while it waits for memory, so that it takes the longer of both:

    t = max(sum of arithmetic, sum of bytes / bandwidth) + t_launch

Both fall alike with the parts that its ops are split into, so that the whole fusion tells which it
is; its ops are then charged for that one alone, and their charges add up to its time. Where ops of
one fusion are split differently, the sum is a lower bound of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ir.analysis import FlatProgram, operand_types

from ..arithmetic import arithmetic_s
from ..compute import ComputeModel
from ..opcost import VIEWS
from .fusion import Traffic, is_fused
from .loop_copies import Moved


def bounded(flat: FlatProgram, traffic: Traffic, compute: ComputeModel) -> Traffic:
    """The traffic of a program on a device, with ops of each fusion charged for what bounds it.

    Args:
        flat: the program.
        traffic: with all reads and writes.
        compute: prices of the device.
    """
    arithmetic: dict[int, float] = defaultdict(float)
    touched: dict[int, float] = defaultdict(float)
    for i, op in enumerate(flat.ops):
        kernels = traffic.kernels[i]
        if not kernels or not is_fused(op.node):
            continue
        types = operand_types(flat, op)
        busy = arithmetic_s(op.node, types, compute)
        share = sum(_read_bytes(op.node.op, types[k].nbytes, op.node.outputs[0].nbytes)
                    for k in traffic.reads[i]) / len(kernels)  # fmt: skip
        for kernel in kernels:
            arithmetic[kernel] += busy
            touched[kernel] += share
        touched[kernels[0]] += sum(op.node.outputs[k].nbytes for k in traffic.writes[i])
    slow = {k for k, busy in arithmetic.items() if busy > float(compute.memory_s(touched[k]))}
    reads, writes, computed = list(traffic.reads), list(traffic.writes), list[int | None]()
    for i, op in enumerate(flat.ops):
        kernels = traffic.kernels[i]
        if not kernels or not is_fused(op.node) or op.node.op == "transpose":
            computed.append(None)
            continue
        count = sum(kernel in slow for kernel in kernels)
        computed.append(0 if op.node.op in VIEWS else count)
        if count == len(kernels):
            reads[i] = writes[i] = ()
    moved = traffic.moved if compute.cluster.loop_copies else dict[int, tuple[Moved, ...]]()
    return replace(
        traffic, reads=tuple(reads), writes=tuple(writes), computed=tuple(computed), moved=moved
    )


def _read_bytes(op: str, operand: int, result: int) -> int:
    return min(operand, result) if op == "slice" else operand
