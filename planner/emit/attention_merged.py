# pyright: basic
"""Attention kernels whose keys are split: outputs of blocks of keys merged, gradients as they are.

Every device has all queries and a block of keys and values. With outputs o_d and logarithms l_d of
the sums of exponentials of device d's block,

    m = max_d l_d,    w_d = exp(l_d - m),    o = sum_d w_d o_d / sum_d w_d,    l = m + log sum_d w_d

one all-reduce for m, and one for both sums, in float32. Lengths of keys count those of a block; a
block beyond the length has a weight of 0. Backward, a kernel that is given o and l of the whole
has the gradients of its keys and values, and a term of that of the queries.

Source: Dao et al., Flash-Decoding for long-context inference (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import HEADS_FIRST, PADDED, has_bias, sequence_dim
from ir.evaluate import bind

from .attention_blocks import Note, columns_of
from .local_op import LocalOp
from .row_exchange import noted

Array = Any
_BIAS, _OF_QUERIES, _OF_KEYS = 3, 4, 5  # positions of operands


@dataclass(frozen=True)
class _Block:
    """A kernel's operands for this device's keys.

    there: whether a batch has any of these keys; None if all have.
    rows: whether a query is within its length, [batch, 1, queries]; None likewise.
    """

    operands: tuple[Array, ...]
    there: Array | None
    rows: Array | None

    def kept(self, x: Array) -> Array:
        """A result [batch, ...] of the kernel, zero where there are no keys."""
        if self.there is None:
            return x
        there = self.there.reshape(-1, *(1,) * (x.ndim - 1))
        return jnp.where(there, x, jnp.zeros((), x.dtype))


def _block(op: LocalOp, axes: tuple[str, ...], operands: Sequence[Array]) -> _Block:
    attrs, found = dict(op.node.attrs), list(operands)
    index, count = lax.axis_index(axes), op.mesh.product(axes)
    length = sequence_dim(attrs)
    if has_bias(attrs):
        found[_BIAS] = columns_of(found[_BIAS], index, count)
    if attrs["mask_type"] not in PADDED:
        return _Block(tuple(found), None, None)
    keys = found[1].shape[length]
    here = jnp.clip(found[_OF_KEYS] - index * keys, 0, keys)
    rows = lax.iota(jnp.int32, found[0].shape[length]) < found[_OF_QUERIES].reshape(-1, 1, 1)
    found[_OF_KEYS] = jnp.maximum(here, 1)  # no kernel runs without keys
    return _Block(tuple(found), here.reshape(-1) > 0, rows)


def forward_merged(
    op: LocalOp, axes: tuple[str, ...], operands: Sequence[Array], note: Note
) -> list[Array]:
    """Runs the forward kernel on a block of keys, and merges what all devices have.

    Args:
        op: the kernel.
        axes: that split the keys.
        operands: shards as its strategy has them.
        note: told of every collective.
    """
    block = _block(op, axes, operands)
    out, lse = bind(op.binding, block.operands, dict(op.params) | {"is_training": True})
    if block.there is not None:
        lse = jnp.where(block.there[:, None, None], lse, -jnp.inf)
    note(*noted("all-reduce", axes, lse.shape, lse.dtype), op.count)
    most = lax.pmax(lse, axes)
    most = jnp.where(jnp.isfinite(most), most, 0.0)
    weight = jnp.exp(lse - most)
    by_query = weight if _heads_first(op) else jnp.swapaxes(weight, 1, 2)
    weighted = by_query[..., None] * block.kept(out).astype(jnp.float32)
    both = jnp.concatenate([weighted, by_query[..., None]], -1)
    note(*noted("all-reduce", axes, both.shape, both.dtype), op.count)
    both = lax.psum(both, axes)
    total = both[..., -1:]
    seen = total > 0.0
    merged = jnp.where(seen, both[..., :-1] / jnp.where(seen, total, 1.0), 0.0).astype(out.dtype)
    if len(op.node.outputs) == 1:
        return [merged]
    total = total[..., 0] if _heads_first(op) else jnp.swapaxes(total[..., 0], 1, 2)
    found = jnp.where(total > 0.0, most + jnp.log(jnp.where(total > 0.0, total, 1.0)), 0.0)
    return [merged, found if block.rows is None else jnp.where(block.rows, found, 0.0)]


def backward_merged(op: LocalOp, axes: tuple[str, ...], operands: Sequence[Array]) -> list[Array]:
    """Runs the backward kernel on a block of keys; arguments as those of the forward kernel."""
    block = _block(op, axes, operands)
    return [block.kept(x) for x in bind(op.binding, block.operands, op.params)]


def _heads_first(op: LocalOp) -> bool:
    return dict(op.node.attrs)["layout"] == HEADS_FIRST
