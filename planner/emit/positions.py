# pyright: basic
"""Ops whose result depends on where the shard lies: iota and random bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ir.evaluate import bind
from ir.jax_internals import draws_by_counter
from ir.threefry import hashed, product

from .local_op import LocalOp, shift

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
