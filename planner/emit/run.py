# pyright: basic
"""Runs one local op: by its primitive, or by hand where it must know where its shard starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from ir import (
    ATTENTION,
    CUMULATIVE,
    EXCHANGE,
    FFT,
    GROUPED,
    REGISTERED,
    SHARD_MAP,
    SLIDING,
    Mesh,
    ReshardStep,
    Sharding,
    TensorType,
    chunk_type,
)

from .attention import attention
from .exchange_in_chunks import Known
from .exchanged_rows import exchanged_add, exchanged_gather
from .grouped import grouped
from .halo import sliding
from .index import gather, scatter
from .local_op import LocalOp
from .mapped import shard_map
from .pencils import fourier
from .positions import iota, random_bits
from .registered import registered
from .running import running
from .slices import INSIDE, bind_inside
from .steps import run_step, take, to_whole

Array = Any
ByHand = Callable[[LocalOp, Sequence[Array]], "list[Array] | None"]

BY_HAND: Mapping[str, ByHand] = {
    "gather": gather,
    "iota": iota,
    "random_bits": random_bits,
    "scatter": scatter,
    "scatter-add": scatter,
    "scatter-max": scatter,
    "scatter-min": scatter,
    "scatter-mul": scatter,
    "scatter-sub": scatter,
}


# Ops through which XLA may see that their operand is a slice.
_THIN = (
    "bitcast_convert_type", "broadcast_in_dim", "convert_element_type", "copy", "reshape",
    "squeeze", "transpose",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Written:
    """A step of a reshard that was written into the program, and how often one call runs it."""

    step: ReshardStep
    type: TensorType
    count: float


class Mover:
    """Changes states of local arrays, and notes the steps.

    `slices` holds the arrays that XLA may see as dynamic slices, by their ids.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.written: list[Written] = []
        self.slices: dict[int, Array] = {}
        self.chunks = Known()

    def move_in_chunks(
        self, x: Array, type_: TensorType, steps: Sequence[ReshardStep], count: float,
        name: str, cut: tuple[int, int],
    ) -> Array:  # fmt: skip
        """The same as `move`, chunk by chunk.

        Args:
            x: the shard before.
            type_: of the whole value.
            steps: in order.
            count: how often one call runs them.
            name: as of `move`.
            cut: dimension, and number of chunks.
        """
        dim, chunks = cut
        small = chunk_type(type_, dim, chunks)
        parts = [
            self.move(part, small, steps, count, name) for part in self.chunks.cut(x, dim, chunks)
        ]
        return self.chunks.note(parts, dim)

    def move(
        self, x: Array, type_: TensorType, steps: Sequence[ReshardStep], count: float,
        name: str = "", again: int = 0,
    ) -> Array:  # fmt: skip
        """The local shard after some steps.

        Args:
            x: the shard before.
            type_: of the whole value.
            steps: in order.
            count: how often one call runs them.
            name: what profilers and the compiled text call them; "reshard7" is number 7 of the
                lowered plan's.
            again: gathers of the same value before.
        """
        with jax.named_scope(name) if name and steps else nullcontext():
            for step in steps:
                self.note(step, type_, count)
                x = run_step(x, step, self.mesh, again)
                if step.kind in ("slice", "reduce-scatter"):  # XLA for CPU makes one of the other
                    self.slices[id(x)] = x
        return x

    def note(self, step: ReshardStep, type_: TensorType, count: float) -> None:
        """Notes a step that is written, of a value of some type, `count` times in one call."""
        self.written.append(Written(step, type_, count))

    def from_first(self, x: Array) -> Array:
        """A 32-bit whole number of the first device, which others have as zero, on all of them."""
        waiting = Sharding((), tuple((axis, "sum") for axis in self.mesh.names))
        return self.move(x, TensorType((), "int32"), to_whole(waiting), 1.0)

    def cut(self, x: Array, state: Sharding) -> Array:
        """The local shard of a value that every device holds whole."""
        x = take(x, state, self.mesh)
        if any(state.dims):
            self.slices[id(x)] = x
        return x

    def apart(self, x: Array) -> Array:
        """The array, behind a barrier if it is a slice that XLA could merge with another."""
        return lax.optimization_barrier(x) if id(x) in self.slices else x


def run_op(op: LocalOp, operands: Sequence[Array], mover: Mover) -> list[Array]:
    """Results of an op in the states that its strategy leaves them in."""
    name = op.node.op
    if name in INSIDE:
        operands = [mover.apart(operands[0]), *operands[1:]]
    results = _run(op, operands, mover)
    if name == "dynamic_slice" or (name in _THIN and id(operands[0]) in mover.slices):
        mover.slices |= {id(x): x for x in results}
    return results


def _run(op: LocalOp, operands: Sequence[Array], mover: Mover) -> list[Array]:
    if op.node.op == SHARD_MAP:
        return shard_map(op, operands, lambda inner, xs: run_op(inner, xs, mover))
    if op.node.op in ATTENTION:
        return attention(op, operands, mover.note)
    if op.node.op == GROUPED:
        return grouped(op, operands, mover.note)
    if op.node.op in SLIDING:
        return sliding(op, operands, mover.note)
    if op.node.op in CUMULATIVE:
        return running(op, operands, mover.note)
    if op.node.op == FFT:
        return fourier(op, operands, mover.note)
    if op.node.op == REGISTERED:
        return registered(op, operands)
    if EXCHANGE in op.strategy.roles:
        run = exchanged_gather if op.node.op == "gather" else exchanged_add
        return run(op, operands, mover.note)
    by_hand = None if op.is_whole else BY_HAND.get(op.node.op)
    if by_hand is None:
        return bind_inside(op.node.op, op.binding, operands, op.params)
    found = by_hand(op, operands)
    return _whole_then_cut(op, operands, mover) if found is None else found


def _whole_then_cut(op: LocalOp, operands: Sequence[Array], mover: Mover) -> list[Array]:
    """Gathers the operands, runs the op whole on every device and keeps the shards."""
    whole = [
        mover.move(x, type_, to_whole(state), op.count)
        for x, type_, state in zip(operands, op.operands, op.strategy.operands, strict=True)
    ]
    results = bind_inside(op.node.op, op.binding, whole, op.binding.params)
    return [mover.cut(x, state) for x, state in zip(results, op.strategy.results, strict=True)]
