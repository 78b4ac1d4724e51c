# pyright: basic
"""Causal attention under a sliding window, split along the sequence: one kernel call a device.

Before its own block a device sees the last keys of the device before. The call has these first, and
as many zeros before its queries, so that the kernel's mask counts right; what it gives for the
zeros is left out. The first device has no keys before its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import halo

from .attention_blocks import PLAIN, Arrays, Blocks, joined

Array = Any


def forward_halo(blocks: Blocks, operands: Sequence[Array]) -> list[Array]:
    """Runs the forward kernel on local shards."""
    size, length, rest = (
        halo(dict(blocks.op.node.attrs)),
        blocks.length,
        tuple(operands[3 : PLAIN.stop]),
    )
    query, *keys = operands[:3]
    before = _tails(blocks, keys, size)

    def inside() -> Arrays:
        both = (joined(x, y, length) for x, y in zip(before, keys, strict=True))
        out, lse = blocks.call((_after_zeros(query, size, length), *both, *rest), causal=True)
        return _after(out, size, length), _after(lse, size, 2)

    def first() -> Arrays:
        return tuple(blocks.call((query, *keys, *rest), causal=True))

    found = lax.cond(blocks.index > 0, inside, first)
    return list(found[: len(blocks.op.node.outputs)])


def backward_halo(blocks: Blocks, operands: Sequence[Array]) -> list[Array]:
    """Runs the backward kernel on local shards; gradients of keys before a shard go back."""
    size, length, rest = (
        halo(dict(blocks.op.node.attrs)),
        blocks.length,
        tuple(operands[3 : PLAIN.stop]),
    )
    (query, *keys), of_query = operands[:3], operands[PLAIN.stop :]
    before, dims = _tails(blocks, keys, size), (2, length, length)

    def inside() -> Arrays:
        both = (joined(x, y, length) for x, y in zip(before, keys, strict=True))
        padded = (_after_zeros(x, size, d) for x, d in zip(of_query, dims, strict=True))
        found = blocks.call((_after_zeros(query, size, length), *both, *rest, *padded), causal=True)
        own = (_after(x, size, length) for x in found[:3])
        return *own, *(lax.slice_in_dim(x, 0, size, axis=length) for x in found[1:3])

    def first() -> Arrays:
        found = blocks.call((query, *keys, *rest, *of_query), causal=True)
        return *found[:3], *map(jnp.zeros_like, before)

    d_query, *d_keys = lax.cond(blocks.index > 0, inside, first)
    of_tails = blocks.passed(d_keys[2:], by=-1)
    return [d_query, *map(partial(_to_tail, dim=length), d_keys[:2], of_tails)]


def _tails(blocks: Blocks, keys: Sequence[Array], size: int) -> Arrays:
    """The last keys and values of the device before."""
    dim = blocks.length
    return blocks.passed([_after(x, x.shape[dim] - size, dim) for x in keys])


def _to_tail(x: Array, more: Array, dim: int) -> Array:
    """A sum with more in its last part."""
    last = x.shape[dim] - more.shape[dim]
    return joined(lax.slice_in_dim(x, 0, last, axis=dim), _after(x, last, dim) + more, dim)


def _after(x: Array, start: int, dim: int) -> Array:
    return lax.slice_in_dim(x, start, None, axis=dim)


def _after_zeros(x: Array, count: int, dim: int) -> Array:
    """An array behind so many zeros."""
    return jnp.pad(x, [(count, 0) if d == dim else (0, 0) for d in range(x.ndim)])
