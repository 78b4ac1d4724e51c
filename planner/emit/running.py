# pyright: basic
"""Cumulative ops whose dimension is split: totals of shards are exchanged and combined.

Every device runs the op on its shard, gathers the last elements of all shards, runs the op on
these, and combines its results with the entry of the device before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import RUNNING, ReshardStep, TensorType, replicated

from .local_op import LocalOp
from .slices import bind_inside

Array = Any
Note = Callable[[ReshardStep, TensorType, float], None]

# What combines two elements.
COMBINED: Mapping[str, Callable[[Array, Array], Array]] = {
    "cumlogsumexp": jnp.logaddexp, "cummax": lax.max, "cummin": lax.min, "cumprod": lax.mul,
    "cumsum": lax.add,
}  # fmt: skip


def running(op: LocalOp, operands: Sequence[Array], note: Note) -> list[Array]:
    """Runs one of `ir.CUMULATIVE` on a shard."""
    (found,) = bind_inside(op.node.op, op.binding, operands, op.params)
    axes = op.strategy.factor_axes(op.mesh).get(RUNNING, ())
    if not axes:
        return [found]
    axis, backward = op.params["axis"], op.params["reverse"]
    count, index = op.mesh.product(axes), lax.axis_index(axes)
    last = 0 if backward else found.shape[axis] - 1
    total = lax.slice_in_dim(found, last, last + 1, axis=axis)
    totals = lax.all_gather(total, axes, axis=axis, tiled=True)
    state = replicated(found.ndim)
    gathered = TensorType(tuple(totals.shape), op.node.outputs[0].dtype)
    note(ReshardStep("all-gather", axes, axis, -1, "", state, state), gathered, op.count)
    (sums,) = bind_inside(op.node.op, op.binding, [totals], op.params)
    before = index + 1 if backward else index - 1  # out of range on the device that has none
    carried = lax.dynamic_slice_in_dim(sums, jnp.clip(before, 0, count - 1), 1, axis=axis)
    first = index == (count - 1 if backward else 0)
    return [jnp.where(first, found, COMBINED[op.node.op](carried, found))]
