"""The order of zigzag: a causal sequence in an order that gives all of its n parts the same work.

A sequence of 2 n chunks is in n parts, of which part i has the chunks i and 2 n - 1 - i: its first
half, and its second half backwards, in turn. Parts of an order of n that are put together r at a
time are those of an order of n / r, but for the order inside them.
"""

from __future__ import annotations

import math
from typing import Any

Array = Any


def to_zigzag(xp: Any, x: Array, dim: int, parts: int) -> Array:
    """An array in the order of zigzag along a dimension.

    Args:
        xp: NumPy, or JAX's NumPy.
        x: any array, whose dimension is a multiple of twice the parts.
        dim: the dimension.
        parts: n.
    """
    first, last = xp.split(xp.reshape(x, _cut(x.shape, dim, 2 * parts)), 2, axis=dim)
    both = [first, xp.flip(last, axis=dim)]
    return xp.reshape(xp.stack(both, axis=dim + 1), x.shape)


def to_straight(xp: Any, x: Array, dim: int, parts: int) -> Array:
    """The inverse of `to_zigzag`."""
    chunks = xp.reshape(x, _cut(x.shape, dim, parts, 2))
    first, last = xp.split(chunks, 2, axis=dim + 1)
    return xp.reshape(xp.concatenate([first, xp.flip(last, axis=dim)], axis=dim), x.shape)


def _cut(shape: tuple[int, ...], dim: int, *counts: int) -> tuple[int, ...]:
    return (*shape[:dim], *counts, shape[dim] // math.prod(counts), *shape[dim + 1 :])
