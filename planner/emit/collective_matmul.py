# pyright: basic
"""Products in parts beside permutes: in place of a gather before, or of a reduce-scatter after.

The n devices of a group form a ring; each has a number in it, and sends to the next one. In round r
device i

    gather     multiplies the part of device i - r, which came, and sends it on
    scatter    multiplies for device i - r - 1, and adds the sum that came; then sends it on

so that each permute is beside the product of a round. A barrier after each round keeps compilers
from sending or computing all parts at once. Sums are in the type of the result, as those of a
reduce-scatter are.

Source: Wang et al., Overlap Communication with Dependent Computation via Decomposition in Large
Deep Learning Models, ASPLOS 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir import FactorSpec, Parts, Reshard, ReshardStep, TensorType, lookup, parts_of, replicated

from .local_op import LocalOp
from .run import Mover
from .slices import bind_inside
from .steps import as_bytes, reorder

Array = Any


def product_in_parts(
    op: LocalOp, operands: Sequence[Array], reshard: Reshard, name: str, mover: Mover
) -> list[Array]:
    """Runs a product in parts.

    Args:
        op: the product.
        operands: shards as its strategy has them, that which is gathered as it is kept.
        reshard: the gather or reduce-scatter; the result is as it is after it.
        name: what profilers and the compiled text call its permutes.
        mover: is told of every permute.
    """
    spec = lookup(op.node.op).factors(op.operands, op.node.outputs, dict(op.node.attrs))
    position = reshard.passage.site.position
    parts = parts_of(spec, position, op.strategy, reshard.change)
    assert parts is not None, "the lowered plan has it in parts"
    ring = _Ring(op, spec, parts, name, mover)
    if parts.kind == "all-gather":
        return [ring.gathered(list(operands), position)]
    return [ring.scattered(list(operands))]


@dataclass(frozen=True)
class _Ring:
    op: LocalOp
    spec: FactorSpec
    parts: Parts
    name: str
    mover: Mover

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of the ring, as permutes number devices over them."""
        return tuple(a for a in self.op.mesh.names if a in self.parts.axes)

    @property
    def count(self) -> int:
        return self.op.mesh.product(self.axes)

    def block(self, back: int) -> Array:
        """The number of the part that the device `back` places before this one has."""
        here = (lax.axis_index(self.axes) - back) % self.count
        if self.axes == self.parts.axes:
            return here
        pairs = reorder(self.axes, self.parts.axes, self.op.mesh)
        number = {device: part for part, device in pairs}
        return jnp.asarray(np.array([number[i] for i in range(self.count)], np.int32))[here]

    def passed(self, x: Array) -> Array:
        """What the device before this one has."""
        state = replicated(x.ndim)
        step = ReshardStep("collective-permute", self.axes, -1, -1, "", state, state)
        self.mover.note(step, TensorType(tuple(x.shape), str(x.dtype)), self.op.count)
        pairs = [(i, (i + 1) % self.count) for i in range(self.count)]
        with jax.named_scope(self.name):
            return as_bytes(x, lambda data: lax.ppermute(data, self.axes, pairs))

    def product(self, operands: Sequence[Array]) -> Array:
        (found,) = bind_inside(self.op.node.op, self.op.binding, operands, self.op.params)
        return found

    def gathered(self, operands: list[Array], position: int) -> Array:
        x, dim = operands[position], self.spec.results[0].index((self.parts.factor,))
        found: Array = None
        for r in range(self.count):
            part = x
            if r + 1 < self.count:
                x = self.passed(x)
            operands[position] = part
            more = self.product(operands)
            size = more.shape[dim]
            if found is None:
                shape = (*more.shape[:dim], size * self.count, *more.shape[dim + 1 :])
                found = jnp.zeros(shape, more.dtype)
            found = lax.dynamic_update_slice_in_dim(found, more, self.block(r) * size, dim)
            x, found = lax.optimization_barrier((x, found))
        return found

    def scattered(self, operands: list[Array]) -> Array:
        cut = [
            (k, dims.index((self.parts.factor,)))
            for k, dims in enumerate(self.spec.operands)
            if (self.parts.factor,) in dims
        ]
        total: Array = None
        for r in range(self.count):
            local = list(operands)
            for k, dim in cut:
                size = local[k].shape[dim] // self.count
                start = self.block(r + 1) * size
                local[k] = lax.dynamic_slice_in_dim(local[k], start, size, dim)
            came = None if total is None else self.passed(total)
            part = self.product(local)
            total = part if came is None else came + part
            operands[0], total = lax.optimization_barrier((operands[0], total))
        return total
