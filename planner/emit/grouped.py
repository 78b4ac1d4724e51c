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

Where rows and groups are split alike: `near_groups`.

Source of tiles: Gale et al., MegaBlocks, arXiv:2211.15841.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import NEAR, grouped_sizes
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
