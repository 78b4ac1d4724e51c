# pyright: basic
"""Runs one local op: by its primitive, or by hand where it must know where its shard starts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel import ReshardModel, Step
from ir import IRError, Sharding, TensorType, replicated

from .index import gather, scatter
from .local_op import PLACEMENT, LocalOp, bind
from .positions import iota, random_bits
from .steps import run_step, take

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


@dataclass(frozen=True, slots=True)
class Written:
    """A step of a reshard that was written into the program, and how often one call runs it."""

    step: Step
    type: TensorType
    count: float


class Mover:
    """Changes states of local arrays along the cheapest paths, and notes the steps."""

    def __init__(self, model: ReshardModel) -> None:
        self.model, self.mesh = model, model.mesh
        self.written: list[Written] = []
        self.count = 1.0  # runs of what is being written

    @contextlib.contextmanager
    def repeated(self, times: float) -> Generator[None]:
        """Within it everything is written into a body that runs so often."""
        outer = self.count
        self.count *= times
        try:
            yield
        finally:
            self.count = outer

    def path(self, type_: TensorType, start: Sharding, end: Sharding) -> tuple[Step, ...]:
        return self.model.path(type_, start, end)

    def move(
        self, x: Array, type_: TensorType, start: Sharding, end: Sharding, again: int = 0
    ) -> Array:
        """The local shard in another state; `again` counts the gathers of it before."""
        for step in self.path(type_, start, end):
            self.written.append(Written(step, type_, self.count))
            x = run_step(x, step, self.mesh, again)
        return x

    def from_first(self, x: Array) -> Array:
        """A 32-bit whole number of the first device, which others have as zero, on all of them."""
        waiting = Sharding((), tuple((axis, "sum") for axis in self.mesh.names))
        return self.move(x, TensorType((), "int32"), waiting, replicated(0))


def run_op(op: LocalOp, operands: Sequence[Array], mover: Mover) -> list[Array]:
    """Results of an op in the states that its strategy leaves them in."""
    if op.node.op in PLACEMENT:
        return list(operands)
    if op.node.op == "shard_map":
        raise IRError(
            f"the planned function holds a shard_map of its own ({op.node.source}), which cannot "
            "run inside the plan's; plan the function without it, or call the planned function "
            "from outside"
        )
    by_hand = BY_HAND.get(op.node.op)
    if by_hand is None or op.is_whole:
        return bind(op.binding, operands, op.params)
    found = by_hand(op, operands)
    return _whole_then_cut(op, operands, mover) if found is None else found


def _whole_then_cut(op: LocalOp, operands: Sequence[Array], mover: Mover) -> list[Array]:
    """Gathers the operands, runs the op whole on every device and keeps the shards."""
    whole = [
        mover.move(x, type_, state, replicated(type_.rank))
        for x, type_, state in zip(operands, op.operands, op.strategy.operands, strict=True)
    ]
    results = bind(op.binding, whole, op.binding.params)
    return [take(x, state, op.mesh) for x, state in zip(results, op.strategy.results, strict=True)]
