# pyright: basic
"""Ops whose result depends on where the shard lies: iota and random bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir.jax_internals import draws_by_counter, threefry2x32

from .local_op import LocalOp, bind, shift

Array = Any


def iota(op: LocalOp, operands: Sequence[Array]) -> list[Array]:
    """Counts from the shard's own first element."""
    dim, dtype = op.binding.params["dimension"], op.binding.params["dtype"]
    state = op.strategy.results[0]
    if not state.dims[dim]:
        return bind(op.binding, operands, op.params)
    whole = op.node.outputs[0].shape[dim]
    line = lax.broadcasted_iota(np.int32, op.local_results[0].shape, dim)
    return [(line + shift(op, state, dim, whole)).astype(dtype)]


def random_bits(op: LocalOp, operands: Sequence[Array]) -> list[Array] | None:
    """The bits that the unsharded op gives at this shard's places.

    Partitionable Threefry hashes, for each element, its number in row-major order over the shape
    drawn per key, as two words of 32 bits. A shard counts from its own offsets over the strides
    of the whole shape. Other generators, and Threefry with `jax_threefry_partitionable` off,
    tie an element's bits to the whole shape: None asks for the whole op and a slice of it.
    """
    (keys,) = operands
    drawn_from = op.operands[0].rank
    if not any(op.strategy.results[0].dims[drawn_from:]):
        return bind(op.binding, operands, op.params)
    if op.operands[0].dtype != "key<fry>" or not draws_by_counter():
        return None
    high, low = _counters(op, drawn_from)
    return [hashed(keys, high, low, op.binding.params["bit_width"])]


def hashed(keys: Array, high: Array, low: Array, width: int) -> Array:
    """What partitionable Threefry draws at the places of the given numbers.

    Args:
        keys: of any shape; each draws at all places.
        high: upper words of the numbers.
        low: lower words.
        width: bits of an element.
    """
    words = jax.random.key_data(keys)
    rank = high.ndim

    def spread(word: Array) -> Array:  # each key draws the whole local shape
        wide = lax.expand_dims(word, range(word.ndim, word.ndim + rank))
        return jnp.broadcast_to(wide, (*word.shape, *high.shape))

    first, second = spread(words[..., 0]), spread(words[..., 1])
    shape = first.shape
    bits = threefry2x32.bind(
        first, second, jnp.broadcast_to(high, shape), jnp.broadcast_to(low, shape)
    )
    return _join(bits[0], bits[1], width)


def _join(high: Array, low: Array, width: int) -> Array:
    dtype = jnp.dtype(f"uint{width}")
    if width == 64:
        return (high.astype(dtype) << np.uint64(32)) | low.astype(dtype)
    return (high ^ low).astype(dtype)


def _counters(op: LocalOp, drawn_from: int) -> tuple[Array, Array]:
    """High and low words of the element numbers of this shard, keys left out."""
    state = op.strategy.results[0]
    whole = op.node.outputs[0].shape[drawn_from:]
    local = op.local_results[0].shape[drawn_from:]
    high = low = jnp.zeros(local, np.uint32)
    for i, size in enumerate(whole):
        stride = math.prod(whole[i + 1 :])
        place = lax.broadcasted_iota(np.int32, local, i) + shift(op, state, drawn_from + i, size)
        more_high, more_low = product(place.astype(np.uint32), stride)
        low = low + more_low
        carry = (low < more_low).astype(np.uint32)
        high = high + more_high + carry
    return high, low


def product(x: Array, factor: int) -> tuple[Array, Array]:
    """64-bit product of words with a number below 2**64, modulo 2**64, as (high, low) words.

    Schoolbook multiplication in digits of 16 bits, so that it needs no 64-bit type.
    """
    low16 = np.uint32(0xFFFF)
    factor_low, factor_high = factor & 0xFFFFFFFF, factor >> 32
    a1, a0 = x >> np.uint32(16), x & low16
    b1, b0 = np.uint32(factor_low >> 16), np.uint32(factor_low & 0xFFFF)
    middle = a1 * b0 + (a0 * b0 >> np.uint32(16))
    other = a0 * b1 + (middle & low16)
    high = a1 * b1 + (middle >> np.uint32(16)) + (other >> np.uint32(16))
    return high + x * np.uint32(factor_high), x * np.uint32(factor_low)
