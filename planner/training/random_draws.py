# pyright: basic
"""The random numbers of a part of the batch: its slice of what the whole batch draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ir import jax_internals as internals
from ir.threefry import hashed, product

from .edits import Draw

Array = Any
WORD = 1 << 32


def drawn(
    eqn: Any, whole: Any, operands: Sequence[Array], draw: Draw, count: int, number: Array
) -> list[Array]:
    """Results of an equation that draws for the examples `number`, `number` + `count`, ...

    Args:
        eqn: the equation at the size of a part.
        whole: the equation at the size of the whole batch.
        operands: operands, the same for both.
        draw: layout of the examples in the results.
        count: number of parts.
        number: number of the part.
    """
    keys = operands[0] if operands else None
    if eqn.primitive.name == "random_bits" and _counts(keys):
        params = (eqn.params["shape"], whole.params["shape"], eqn.params["bit_width"])
        return [_bits(keys, *params, draw, count, number)]
    found = internals.run_equation(whole, operands, {})
    return [
        x if x.shape == var.aval.shape else _slice(x, draw, var.aval.shape, count, number)
        for x, var in zip(found, eqn.outvars, strict=True)
    ]


def _counts(keys: Array) -> bool:
    """Whether the bits of an element depend on the key and its index alone."""
    return str(keys.dtype) == "key<fry>" and internals.draws_by_counter()


def _bits(
    keys: Array,
    local: tuple[int, ...],
    whole: tuple[int, ...],
    width: int,
    draw: Draw,
    count: int,
    number: Array,
) -> Array:
    """The whole draw's bits at the part's positions; see `positions.random_bits`."""
    dim = draw.dim - keys.ndim
    high = low = jnp.zeros(local, np.uint32)
    for d, size in enumerate(local):
        stride = math.prod(whole[d + 1 :])
        place = _places(size, draw, count, number) if d == dim else (
            lax.iota(np.uint32, size)
        )  # fmt: skip
        place = lax.broadcast_in_dim(place, local, (d,))
        if math.prod(whole) <= WORD:
            low = low + place * np.uint32(stride % WORD)
            continue
        more_high, more_low = product(place, stride)
        low = low + more_low
        high = high + more_high + (low < more_low).astype(np.uint32)
    return hashed(keys, high, low, width)


def _places(size: int, draw: Draw, count: int, number: Array) -> Array:
    """Indices of the part's entries in the whole draw, along the dimension of examples."""
    each = size // (draw.outer * draw.inner)
    sizes = (draw.outer, each, draw.inner)
    around, example, within = (lax.broadcasted_iota(np.uint32, sizes, d) for d in range(3))
    whole = example * np.uint32(count) + number.astype(np.uint32)
    if draw.inner > 1:
        whole = whole * np.uint32(draw.inner) + within
    if draw.outer > 1:
        whole = whole + around * np.uint32(size // draw.outer * count)
    return lax.reshape(whole, (size,))


def _slice(x: Array, draw: Draw, local: Sequence[int], count: int, number: Array) -> Array:
    """The part's entries of a whole draw."""
    size, dim = local[draw.dim], draw.dim
    each = size // (draw.outer * draw.inner)
    sizes = (*local[:dim], draw.outer, each, count, draw.inner, *local[dim + 1 :])
    return lax.dynamic_index_in_dim(
        x.reshape(sizes), number, axis=dim + 2, keepdims=False
    ).reshape(local)  # fmt: skip
