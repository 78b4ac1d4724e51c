"""What loops move in memory beside their ops: slices on their way into stacks, and carries.

A stack of slices (the `ys` of `lax.scan`) is filled with zeros before the loop, and every round
puts its slice there. A fusion that makes a slice for the stack alone writes it in its place; what
is read by others too is written once more, and what a kernel made or what was there before is
copied, read and written.

A carry is one buffer for all rounds. A fusion that reads neighbours of what it writes (a stencil, a
shift) cannot write there; its result is copied into the buffer. A slice of it is written in place
by what reads that slice of it alone, as XLA's fusions of dynamic-update-slice do.

Source: JAX, jax/_src/lax/control_flow/loops.py (stacks begin as zeros); XLA's copy insertion and
in-place fusions of dynamic-update-slice. On an H100
(`benchmarks/data/one_gpu_h100_full_clock.csv`, kernels of its profiles): 20 steps of a stencil of
512^3 spend 7.1 of 15.4 ms in such copies, 12 layers of `gpt dropout` 33 of 139 ms in zeros and
copies of stacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ir import lookup
from ir.analysis import FlatOp, FlatProgram, Link, host_values

from ..opcost import VIEWS

OPERAND, RESULT = "operand", "result"
Moved = tuple[str, int, float]  # side of an op, position there, how often its bytes move
_ZEROS, _WRITE, _COPY = 1.0, 1.0, 2.0
_IN_PLACE = frozenset(VIEWS) - {"transpose"}  # the same elements in the same order


def loop_copies(
    flat: FlatProgram, free: Sequence[bool], fusion: Sequence[Sequence[int]], fused: Sequence[bool]
) -> Mapping[int, tuple[Moved, ...]]:
    """What each op is charged for: its results, or an operand that was there before.

    Args:
        flat: the program.
        free: whether each value is made of literals alone.
        fusion: kernels that compute each op.
        fused: whether each op is part of a fusion.
    """
    slices, on_host = set(flat.stacked.values()), host_values(flat)
    entries = Counter(link.target for link in flat.links)
    leaves = Counter(link.source for link in flat.links)
    found: dict[int, tuple[Moved, ...]] = {}
    for link in flat.links:
        times = 0.0
        if free[link.source] or {link.source, link.target} & on_host:
            continue
        if link.target in slices:
            times = _ZEROS + _into_stack(flat, link, fused, leaves[link.source])
        elif entries[link.target] > 1 and _reads_neighbours(flat, link, fusion):
            times = _COPY
        charged = _charged(flat, link.source) if times else None
        if charged is not None:
            i, side, position = charged
            found[i] = (*found.get(i, ()), (side, position, times))
    return found


def _charged(flat: FlatProgram, v: int) -> tuple[int, str, int] | None:
    """The op that makes a value, else the first that reads it."""
    if v in flat.maker:
        i, position = flat.maker[v]
        return i, RESULT, position
    for op in flat.readers.get(v, ()):
        if op.outputs:
            return _number(flat, op), OPERAND, op.inputs.index(v)
    return None


def _number(flat: FlatProgram, op: FlatOp) -> int:
    return flat.maker[op.outputs[0]][0]


def _into_stack(flat: FlatProgram, link: Link, fused: Sequence[bool], leaves: int) -> float:
    made = flat.maker.get(link.source)
    if made is None or not fused[made[0]]:
        return _COPY
    return _WRITE if leaves > 1 or flat.readers.get(link.source) else 0.0


def _reads_neighbours(flat: FlatProgram, link: Link, fusion: Sequence[Sequence[int]]) -> bool:
    """Whether the fusion that makes a new carry reads the old one out of place."""
    made = flat.maker.get(link.source)
    if made is None or _writes_in_place(flat, link, flat.ops[made[0]], fusion):
        return False
    kernels = set(fusion[made[0]])
    readers = (op for op in flat.readers.get(link.target, ()) if op.outputs)
    return any(
        not kernels.isdisjoint(fusion[_number(flat, op)])
        and lookup(op.node.op).family != "elementwise"
        and op.node.op not in _IN_PLACE
        for op in readers
    )


def _writes_in_place(
    flat: FlatProgram, link: Link, update: FlatOp, fusion: Sequence[Sequence[int]]
) -> bool:
    """Whether a new carry is the old one with another slice, made of that slice of it alone."""
    kernels = set(fusion[_number(flat, update)])
    if update.node.op != "dynamic_update_slice" or update.inputs[0] != link.target:
        return False
    types = [flat.values[v].type.shape for v in update.inputs[1:2] if isinstance(v, int)]
    return all(
        op is update
        or kernels.isdisjoint(fusion[_number(flat, op)])
        or (
            op.node.op == "dynamic_slice"
            and op.inputs[1:] == update.inputs[2:]
            and [op.node.outputs[0].shape] == types
        )
        for op in flat.readers.get(link.target, ())
        if op.outputs
    )
