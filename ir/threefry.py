# pyright: basic
"""Partitionable Threefry: the random bits of an element, from its number."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .jax_internals import threefry2x32

Array = Any


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
