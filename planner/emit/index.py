# pyright: basic
"""Gather and scatter along split dimensions: indices are global, shards are local."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ir.evaluate import bind

from .local_op import LocalOp, shift
from .slices import columns_of, gather_inside, scatter_inside, window_sizes, within
from .steps import mask, nothing

Array = Any


def gather(op: LocalOp, operands: Sequence[Array]) -> list[Array]:
    """Looks up the rows of this shard, and nothing for all others: a partial sum.

    What an index out of range means is decided on the whole dimension first: modes CLIP and
    PROMISE_IN_BOUNDS clamp it, as XLA does; FILL_OR_DROP gives the fill value, which only the
    first shard contributes.
    """
    params, numbers = op.params, op.binding.params["dimension_numbers"]
    state, shape = op.strategy.operands[0], op.operands[0].shape
    sizes = op.binding.params["slice_sizes"]
    split = [d for d in numbers.start_index_map if state.dims[d] and sizes[d] < shape[d]]
    if not split:
        return gather_inside(op.binding, operands, params)
    operand, indices = operands
    fills = params["mode"].name == "FILL_OR_DROP"
    columns = columns_of(indices)
    inside = here = jnp.ones(indices.shape[:-1], bool)
    for k, d in enumerate(numbers.start_index_map):
        last = shape[d] - sizes[d]
        inside = inside & within(columns[k], last)
        columns[k] = jnp.clip(columns[k], 0, last)
        if d in split:
            columns[k] = columns[k] - shift(op, state, d, shape[d])
            here = here & within(columns[k], operand.shape[d] - 1)
            columns[k] = jnp.clip(columns[k], 0, operand.shape[d] - 1)
    params["mode"] = type(params["mode"]).CLIP
    (found,) = bind(op.binding, (operand, jnp.stack(columns, -1)), params)
    batch = [j for j in range(found.ndim) if j not in numbers.offset_dims]

    def wide(flags: Array) -> Array:
        return lax.broadcast_in_dim(flags, found.shape, batch)

    kept = here & inside if fills else here
    found = jnp.where(wide(kept), found, nothing(found))
    if fills:
        axes = tuple(axis for d in split for axis in state.dims[d])
        fill = jnp.full_like(found, fill_value(params["fill_value"], found.dtype))
        found = jnp.where(wide(inside), found, mask(fill, axes))
    return [found]


def fill_value(given: Any, dtype: Any) -> Any:
    """The value that `jax.lax.gather` fills in."""
    if given is not None:
        return given
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.nan
    if dtype == jnp.bool_:
        return True
    info = jnp.iinfo(dtype)
    return info.min if info.min < 0 else info.max


def scatter(op: LocalOp, operands: Sequence[Array]) -> list[Array]:
    """Applies the updates that fall into this shard.

    Where updates are split, each device adds its own ones: the result is a partial sum, to which
    the operand itself contributes on the first device only.
    """
    operand, indices, updates = operands
    params, numbers = op.params, op.binding.params["dimension_numbers"]
    if axes := op.summed_axes():
        operand = mask(operand, axes)
    state, shape = op.strategy.operands[0], op.operands[0].shape
    sizes = window_sizes(numbers, shape, op.operands[2].shape)
    split = [
        d for d in numbers.scatter_dims_to_operand_dims if state.dims[d] and sizes[d] < shape[d]
    ]
    if split:
        clips = params["mode"].name == "CLIP"
        columns = columns_of(indices)
        for k, d in enumerate(numbers.scatter_dims_to_operand_dims):
            if clips:
                columns[k] = jnp.clip(columns[k], 0, shape[d] - sizes[d])
            if d in split:  # one step beyond the shard, so that nothing overflows
                first = shift(op, state, d, shape[d])
                columns[k] = jnp.clip(columns[k], first - 1, first + operand.shape[d]) - first
        indices = jnp.stack(columns, -1)
        params["mode"] = type(params["mode"]).FILL_OR_DROP
    return scatter_inside(op.binding, (operand, indices, updates), params)
