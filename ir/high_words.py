# pyright: basic
"""High words of integer products, in plain arithmetic.

The JAX primitive cannot be lowered under a mesh in any version up to 0.12, so that programs for
several devices cannot use it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

Array = Any


def multiply_high(x: Array, y: Array) -> Array:
    """The upper half of the bits of `x * y`, as `jax.lax.mulhi`."""
    info = jnp.iinfo(x.dtype)
    if info.bits <= 16:
        wide = jnp.int32 if info.min < 0 else jnp.uint32
        return ((x.astype(wide) * y.astype(wide)) >> info.bits).astype(x.dtype)
    if info.min == 0:
        return _unsigned(x, y)
    word = jnp.dtype(f"uint{info.bits}")
    high = _unsigned(lax.bitcast_convert_type(x, word), lax.bitcast_convert_type(y, word))
    zero = jnp.zeros_like(x)
    # a negative number is its word less 2**bits
    taken = jnp.where(x < 0, y, zero) + jnp.where(y < 0, x, zero)
    return lax.bitcast_convert_type(high, x.dtype) - taken


def _unsigned(x: Array, y: Array) -> Array:
    """High word by long multiplication with digits of half a word."""
    half = jnp.iinfo(x.dtype).bits // 2
    low = jnp.asarray((1 << half) - 1, x.dtype)
    x1, x0, y1, y0 = x >> half, x & low, y >> half, y & low
    middle = x1 * y0 + (x0 * y0 >> half)
    other = x0 * y1 + (middle & low)
    return x1 * y1 + (middle >> half) + (other >> half)
