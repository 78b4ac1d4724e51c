# pyright: basic
"""Grouped products on local shards, in tiles of rows that belong to one group each.

A device finds where each of its groups begins and ends in its rows, and cuts every group into
tiles of B rows, the last one partly empty. A batched product of T tiles with the matrices of their
groups is one step of a loop, which ends with the last tile that has rows:

    tiles    sum over groups of ceil(rows of the group / B), however unequal they are
    memory   T (B depth + depth width + B width) elements beside operands and results

so that no row is dropped and nothing depends on a bound. A result has terms of the row's own group
only: NaN and infinities in other groups' matrices are not multiplied by zeros, which a dense
product adds as NaN. XLA itself makes of a gradient for the
matrices one dense product of all rows for each group, and of the other products too where cuDNN
has no kernel: groups times the work, and groups times the rows in memory.

Where rows and groups are split alike: `near_groups`. Blocks of rows with sizes of their own run one
after the other.

Source of tiles: Gale et al., MegaBlocks, arXiv:2211.15841.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import NEAR, GroupedSizes, TensorType, grouped_sizes, of_one_block
from ir.evaluate import bind

from .attention_blocks import Note
from .group_tiles import Products, bounds, tiles_of
from .local_op import LocalOp, shift
from .near_groups import Near, near_gradient, near_rows
from .row_exchange import noted

Array = Any


def grouped(op: LocalOp, operands: Sequence[Array], note: Note) -> list[Array]:
    """Runs a grouped product on local shards.

    Args:
        op: the product.
        operands: shards as its strategy has them.
        note: told of every permute.
    """
    sizes = grouped_sizes(op.operands, dict(op.node.attrs))
    result = op.local_results[0]
    if sizes is None:
        return bind(op.binding, operands, op.params)
    if sizes.blocks and all(x.size for x in operands):
        return [_in_blocks(op, sizes, operands, note)]
    if not all(x.size for x in operands) or 0 in result.shape:
        return [jnp.zeros(result.shape, result.dtype)]
    lhs, rhs, counts = operands
    products, rows = Products(op, sizes), lhs.shape[0]
    axes = op.strategy.factor_axes(op.mesh).get(NEAR, ())
    if axes:
        near = Near(op, axes, products, counts, rows)
        sent = products.sum_type if sizes.contracts_rows else rhs.dtype
        note(*noted("all-to-all", axes, near.shape(), sent), op.count)
        run = near_gradient if sizes.contracts_rows else near_rows
        return [run(near, lhs, rhs).astype(result.dtype)]
    first, end = bounds(counts, shift(op, op.strategy.operands[0], 0, sizes.rows), rows)
    state, dim = op.strategy.results[0], 0
    if not sizes.contracts_rows:
        state, dim = op.strategy.operands[1], sizes.matrix_dims[0]
    groups = sizes.groups // op.mesh.product(state.dims[dim])
    if groups < sizes.groups:
        own = shift(op, state, dim, sizes.groups)
        first, end = (lax.dynamic_slice(x, (own,), (groups,)) for x in (first, end))
    tiles = tiles_of(sizes, first, end, rows)
    if sizes.contracts_rows:
        sums = jnp.zeros(result.shape, products.sum_type)
        return [products.gradient(tiles, lhs, rhs, sums).astype(result.dtype)]
    return [products.rows(tiles, lhs, rhs, jnp.zeros(result.shape, result.dtype))]


def _in_blocks(op: LocalOp, sizes: GroupedSizes, operands: Sequence[Array], note: Note) -> Array:
    """A product of this device's blocks."""
    lhs, rhs, counts = operands
    many, blocks, result = sizes.contracts_rows, lhs.shape[0], op.local_results[0]
    one = _of_one_block(op, sizes, blocks)
    if blocks == 1:
        (found,) = grouped(one, (lhs[0], rhs[0] if many else rhs, counts[0]), note)
        return (found if many else found[None]).astype(result.dtype)

    def step(total: Array, block: tuple[Array, ...]) -> tuple[Array, Array]:
        rows, *right, sizes_here = block
        (found,) = grouped(one, (rows, right[0] if many else rhs, sizes_here), note)
        return (total + found, ()) if many else (total, found)

    wide = jnp.zeros(result.shape, one.node.outputs[0].dtype) if many else ()
    total, each = lax.scan(step, wide, (lhs, rhs, counts) if many else (lhs, counts))
    return total.astype(result.dtype) if many else each


def _of_one_block(op: LocalOp, sizes: GroupedSizes, blocks: int) -> LocalOp:
    """The product of one of a device's blocks; sums of several are in a wide type."""
    many, out = sizes.contracts_rows, op.node.outputs[0]
    lead = (True, many, True)  # operands with a dimension of blocks
    wide = str(jnp.promote_types(out.dtype, jnp.float32)) if many else out.dtype
    outputs = TensorType(out.shape if many else out.shape[1:], wide)
    states = op.strategy.results[0]
    strategy = replace(
        op.strategy,
        operands=tuple(
            replace(s, dims=s.dims[1:]) if cut else s
            for s, cut in zip(op.strategy.operands, lead, strict=True)
        ),
        results=(states if many else replace(states, dims=states.dims[1:]),),
    )
    operands = tuple(
        TensorType(t.shape[1:], t.dtype) if cut else t
        for t, cut in zip(op.operands, lead, strict=True)
    )
    attrs = tuple(sorted(of_one_block(dict(op.node.attrs)).items()))
    node = replace(op.node, attrs=attrs, outputs=(outputs,))
    return replace(op, node=node, operands=operands, strategy=strategy, count=op.count * blocks)
