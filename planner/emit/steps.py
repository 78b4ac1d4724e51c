# pyright: basic
"""The steps of a reshard as explicit collectives, inside `jax.shard_map`.

Blocks of a dimension are numbered in row-major order over the axes that split it, the first
axis outermost. JAX orders the members of a collective over a tuple of axes in the same way, by
the order of the tuple, so that a minor suffix of the axes joins neighbouring blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir import Mesh, ReshardStep, Sharding

Array = Any
Move = Callable[[Array], Array]


def run_step(x: Array, step: ReshardStep, mesh: Mesh, again: int = 0) -> Array:
    """The local shard after one step of a reshard, from the local shard before it.

    Args:
        x: the shard before.
        step: the step.
        mesh: the mesh that `jax.shard_map` runs on.
        again: how often the same value was gathered before; see `_gathered`.
    """
    if step.kind in ("all-reduce", "reduce-scatter"):
        return _reduced(x, step)
    if step.kind == "mask":
        return mask(x, step.axes)
    if step.kind == "slice":
        return _plain(x, lambda data: block(data, step.to_dim, step.axes, mesh))
    return as_bytes(x, lambda data: _moved(data, step, mesh, again))


def finishing(state: Sharding) -> tuple[ReshardStep, ...]:
    """The all-reduce that makes partial results whole ones; none where the value is no such."""
    if not state.partial:
        return ()
    axes, kind = tuple(axis for axis, _ in state.partial), state.partial[0][1]
    return (ReshardStep("all-reduce", axes, -1, -1, kind, state, state.without_partial()),)


def to_whole(state: Sharding) -> tuple[ReshardStep, ...]:
    """Steps after which every device holds the whole value."""
    steps, state = [*finishing(state)], state.without_partial()
    for dim, axes in enumerate(state.dims):
        if axes:
            after = Sharding((*state.dims[:dim], (), *state.dims[dim + 1 :]))
            steps.append(ReshardStep("all-gather", axes, dim, -1, "", state, after))
            state = after
    return tuple(steps)


def take(x: Array, state: Sharding, mesh: Mesh) -> Array:
    """The local shard of a value that every device holds whole; costs no communication.

    Partial sums are the value on the first device and zero elsewhere; as a partial maximum or
    minimum the value is its own term.
    """

    def cut(data: Array) -> Array:
        for dim, axes in enumerate(state.dims):
            data = block(data, dim, axes, mesh)
        return data

    if any(state.dims):
        x = _plain(x, cut)
    summed = tuple(axis for axis, kind in state.partial if kind == "sum")
    return mask(x, summed) if summed else x


def block(x: Array, dim: int, axes: tuple[str, ...], mesh: Mesh) -> Array:
    """This device's block of one dimension."""
    if not axes:
        return x
    size = x.shape[dim] // mesh.product(axes)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axes) * size, size, dim)


def mask(x: Array, axes: tuple[str, ...]) -> Array:
    """`x` on the first device along the axes, nothing on the others."""
    return jnp.where(lax.axis_index(axes) == 0, x, nothing(x))


def nothing(x: Array) -> Array:
    """Terms that a sum does not notice: of floats negative zeros, as -0 + 0 is 0."""
    zeros = jnp.zeros_like(x)
    return -zeros if jnp.issubdtype(x.dtype, jnp.inexact) else zeros


def is_key(x: Array) -> bool:
    """Whether an array holds random keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _plain(x: Array, move: Move) -> Array:
    """Applies a move of data to keys through their words, which are trailing dimensions."""
    if not is_key(x):
        return move(x)
    return jax.random.wrap_key_data(move(jax.random.key_data(x)), impl=jax.random.key_impl(x))


def as_bytes(x: Array, move: Move) -> Array:
    """Applies a move of data to an array whose type collectives may not know.

    Short types travel as bytes of their own size, which is exact; booleans as 0 and 1.
    """
    if is_key(x):
        return _plain(x, move)
    if x.dtype == jnp.bool_:
        return move(x.astype(jnp.uint8)).astype(jnp.bool_)
    if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 1:
        return lax.bitcast_convert_type(move(lax.bitcast_convert_type(x, jnp.uint8)), x.dtype)
    return move(x)


def _moved(x: Array, step: ReshardStep, mesh: Mesh, again: int) -> Array:
    if step.kind == "all-gather":
        return _gathered(x, step, again)
    if step.kind == "all-to-all":
        return lax.all_to_all(
            x, step.axes, split_axis=step.to_dim, concat_axis=step.dim, tiled=True
        )
    if step.kind == "collective-permute":
        before, after = step.before.dims[step.dim], step.after.dims[step.dim]
        ordered = tuple(axis for axis in mesh.names if axis in before)
        return lax.ppermute(x, ordered, reorder(before, after, mesh))
    raise ValueError(f"'{step.kind}' is not a step of a reshard")


def _gathered(x: Array, step: ReshardStep, again: int) -> Array:
    """All-gather; a repeated one has as many unit dimensions before the one that grows.

    They change no byte. But XLA for CPU removes barriers before it merges equal operations, and
    gathers of different shapes are not equal.
    """
    shape = x.shape
    units = (*shape[: step.dim], *(1,) * again, *shape[step.dim :])
    whole = lax.all_gather(x.reshape(units), step.axes, axis=step.dim, tiled=True)
    size = math.prod(whole.shape[step.dim : step.dim + again + 1])
    return whole.reshape(*shape[: step.dim], size, *shape[step.dim + 1 :])


def reorder(before: tuple[str, ...], after: tuple[str, ...], mesh: Mesh) -> list[tuple[int, int]]:
    """Pairs (from, to) of devices that bring each block from its old to its new place.

    The device whose number over `before` is i holds block i, the one whose number over `after`
    is i shall hold it. The pairs number devices over the axes in mesh order, in which
    `ppermute` takes them.
    """
    ordered = [axis for axis in mesh.names if axis in before]
    sizes = [mesh.size(axis) for axis in ordered]
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    holder, wanted = (
        devices.transpose([ordered.index(axis) for axis in axes]).ravel().tolist()
        for axes in (before, after)
    )
    return list(zip(holder, wanted, strict=True))


def _reduced(x: Array, step: ReshardStep) -> Array:
    """All-reduce or reduce-scatter; of booleans the maximum is `or`, the minimum `and`."""
    if x.dtype == jnp.bool_:
        # A sum could pass 255 where there are more devices; largest and least travel as bytes.
        wide = jnp.int32 if step.reduction == "sum" else jnp.uint8
        return _reduced(x.astype(wide), step) != 0
    if step.kind == "reduce-scatter":
        return lax.psum_scatter(x, step.axes, scatter_dimension=step.to_dim, tiled=True)
    if step.reduction == "sum":
        return lax.psum(x, step.axes)
    reduce = {"max": lax.pmax, "min": lax.pmin}[step.reduction]
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return reduce(x, step.axes)
    return _from_order(reduce(_to_order(x, step.reduction), step.axes), x.dtype)


# A collective's maximum leaves NaN out, on CPUs as on GPUs. Whole numbers in the order of the
# floats, with NaN before or behind all others, are reduced exactly.
def _to_order(x: Array, reduction: str) -> Array:
    if x.dtype.itemsize == 1:
        x = x.astype(jnp.float32)
    word = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    info = jnp.iinfo(word)
    nan = jnp.asarray(info.max if reduction == "max" else info.min, word)
    return jnp.where(jnp.isnan(x), nan, _turned(lax.bitcast_convert_type(x, word)))


def _from_order(words: Array, dtype: Any) -> Array:
    wide = jnp.float32 if dtype.itemsize == 1 else dtype
    x = lax.bitcast_convert_type(_turned(words), wide)
    return jnp.where(jnp.isnan(x), jnp.asarray(jnp.nan, wide), x).astype(dtype)  # of positive sign


def _turned(words: Array) -> Array:
    """The bits of negative numbers but for their sign inverted; its own inverse."""
    info = jnp.iinfo(words.dtype)
    return words ^ ((words >> (info.bits - 1)) & jnp.asarray(info.max, words.dtype))
