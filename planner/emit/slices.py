# pyright: basic
"""Reads and writes at computed places, along dimensions that are whole: all places are inside.

XLA merges a dynamic slice of a dynamic slice and forgets the inner bounds, also where it made the
slices itself: of a gather or a scatter with one index, of a sharding. The sum of two starts is
right only where each of them is, so that they are clamped here and never by XLA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir.evaluate import PLACEMENT, bind
from ir.jax_internals import evaluated
from ir.trace import Binding

Array = Any
Params = Mapping[str, Any]


def bind_inside(
    name: str, binding: Binding, operands: Sequence[Array], params: Params
) -> list[Array]:
    """Runs a primitive as `bind` does, with all places inside of what they are places of.

    The user's placements change nothing: the plan places every value.
    """
    if name in PLACEMENT:
        return list(operands)
    function = INSIDE.get(name)
    return function(binding, operands, params) if function else bind(binding, operands, params)


def _dynamic_slice(binding: Binding, operands: Sequence[Array], params: Params) -> list[Array]:
    x, *starts = operands
    return bind(binding, (x, *_clamped(starts, x.shape, params["slice_sizes"])), params)


def _dynamic_update(binding: Binding, operands: Sequence[Array], params: Params) -> list[Array]:
    x, update, *starts = operands
    return bind(binding, (x, update, *_clamped(starts, x.shape, update.shape)), params)


def _clamped(
    starts: Sequence[Array], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> list[Array]:
    """Starts at which the window fits; 0 along a dimension that it covers."""
    room = [size - window for size, window in zip(shape, sizes, strict=True)]
    return [jnp.clip(signed(start), 0, last) for start, last in zip(starts, room, strict=True)]


def gather_inside(binding: Binding, operands: Sequence[Array], params: Params) -> list[Array]:
    """A gather; with FILL_OR_DROP JAX masks what is outside."""
    if params["mode"].name == "FILL_OR_DROP":
        return bind(binding, operands, params)
    operand, indices = operands
    dims, sizes = params["dimension_numbers"].start_index_map, params["slice_sizes"]
    columns = [
        jnp.clip(column, 0, operand.shape[d] - sizes[d])
        for column, d in zip(columns_of(indices), dims, strict=True)
    ]
    return bind(binding, (operand, jnp.stack(columns, -1) if columns else indices), params)


def scatter_inside(binding: Binding, operands: Sequence[Array], params: Params) -> list[Array]:
    """A scatter into dimensions that are whole, or whose indices are local.

    XLA makes of a single update a dynamic slice that is read, changed and put back. Its place is
    therefore brought inside, and where it was outside, what is there is put back.
    """
    operand, indices, updates = operands
    given, numbers = dict(params), params["dimension_numbers"]
    dims = numbers.scatter_dims_to_operand_dims
    if math.prod(indices.shape[:-1]) != 1 or not dims or not updates.size:
        return bind(binding, operands, given)
    sizes = window_sizes(numbers, operand.shape, updates.shape)
    columns = columns_of(indices)
    inside = jnp.ones(indices.shape[:-1], bool)
    for k, d in enumerate(dims):
        last = operand.shape[d] - sizes[d]
        inside = inside & within(columns[k], last)
        columns[k] = jnp.clip(columns[k], 0, last)
    indices = jnp.stack(columns, -1)
    if given["mode"].name == "CLIP":
        return bind(binding, (operand, indices, updates), given)
    there = _window(operand, indices, numbers, tuple(sizes[d] for d in range(operand.ndim)))
    after = _combined(given, there, updates)
    places = [j for j in range(updates.ndim) if j not in numbers.update_window_dims]
    inside = lax.broadcast_in_dim(inside, updates.shape, places)
    given |= {"update_jaxpr": None, "update_consts": ()}
    return [lax.scatter_p.bind(operand, indices, jnp.where(inside, after, there), **given)]


def _window(operand: Array, indices: Array, numbers: Any, sizes: tuple[int, ...]) -> Array:
    """What a scatter would update, in the shape of its updates."""
    mirrored = lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    return lax.gather(operand, indices, mirrored, sizes, mode="clip")


def _combined(params: Params, there: Array, updates: Array) -> Array:
    """What is there after its update, element by element."""
    if params["update_jaxpr"] is None:
        return updates

    def one(old: Array, new: Array) -> Array:
        (found,) = evaluated(params["update_jaxpr"], params["update_consts"], old, new)
        return found

    return jax.vmap(one)(there.ravel(), updates.ravel()).reshape(updates.shape)


# --- places --------------------------------------------------------------------------------------


def columns_of(indices: Array) -> list[Array]:
    """The components of each index, signed and wide enough for any shift."""
    indices = signed(indices)
    return [indices[..., k] for k in range(indices.shape[-1])]


def signed(index: Array) -> Array:
    """Indices in a signed type that holds any place, and any shift of it."""
    info = jnp.iinfo(index.dtype)
    if info.bits >= 32 and info.min == 0:  # what no signed word holds is out of range anyway
        index = jnp.minimum(index, index.dtype.type(np.iinfo(np.int32).max))
    return index.astype(jnp.int32) if info.bits < 32 or info.min == 0 else index


def within(column: Array, last: int) -> Array:
    return (column >= 0) & (column <= last)


def window_sizes(numbers: Any, shape: tuple[int, ...], updates: tuple[int, ...]) -> dict[int, int]:
    """Size of the updated window along each operand dimension."""
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    kept = [d for d in range(len(shape)) if d not in gone]
    sizes = dict.fromkeys(range(len(shape)), 1)
    for d, j in zip(kept, numbers.update_window_dims, strict=True):
        sizes[d] = updates[j]
    return sizes


_Inside = Callable[[Binding, Sequence[Array], Params], "list[Array]"]

INSIDE: Mapping[str, _Inside] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "gather": gather_inside,
    "scatter": scatter_inside,
    "scatter-add": scatter_inside,
    "scatter-max": scatter_inside,
    "scatter-min": scatter_inside,
    "scatter-mul": scatter_inside,
    "scatter-sub": scatter_inside,
}
