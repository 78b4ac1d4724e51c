# pyright: basic
"""Grouped products on local shards, in tiles of rows that belong to one group each.

A device finds where each of its groups begins and ends in its rows, and cuts every group into
tiles of B rows, the last one partly empty. A batched product of T tiles with the matrices of their
groups is one step of a loop, which ends with the last tile that has rows:

    tiles    sum over groups of ceil(rows of the group / B), however unequal they are
    memory   T (B depth + depth width + B width) elements beside operands and results

so that no row is dropped and nothing depends on a bound. XLA itself makes of a gradient for the
matrices one dense product of all rows for each group, and of the other products too where cuDNN
has no kernel: groups times the work, and groups times the rows in memory.

Source of tiles: Gale et al., MegaBlocks, arXiv:2211.15841.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import TILES_AT_ONCE, GroupedSizes, grouped_sizes
from ir.evaluate import bind

from .local_op import LocalOp, shift

Array = Any


def grouped(op: LocalOp, operands: Sequence[Array]) -> list[Array]:
    """Runs a grouped product on local shards."""
    sizes = grouped_sizes(op.operands, dict(op.node.attrs))
    result = op.local_results[0]
    if sizes is None or not all(x.size for x in operands) or 0 in result.shape:
        return bind(op.binding, operands, op.params)
    lhs, rhs, counts = operands
    tiles = _tiles(op, sizes, counts, lhs.shape[0])
    if sizes.contracts_rows:
        return [_gradient(op, tiles, lhs, rhs)]
    return [_rows(op, tiles, sizes, lhs, rhs)]


@dataclass(frozen=True)
class _Tiles:
    """Tiles of a device's own groups in its rows; arrays have one entry per group.

    first, end: its rows of each group.
    upto: tiles of this group and all before it.
    at_once: tiles in one step.
    most: tiles there can be.
    """

    rows: int
    size: int
    first: Array
    end: Array
    upto: Array
    at_once: int
    most: int

    def of(self, start: Array) -> tuple[Array, Array, Array]:
        """Group, numbers of the rows, and which of these there are, of tiles from `start` on."""
        tile = start + lax.iota(jnp.int32, self.at_once)
        group = jnp.searchsorted(self.upto, tile, side="right", method="compare_all")
        group = jnp.minimum(group, self.upto.shape[0] - 1).astype(jnp.int32)
        before = self.upto[group] - _over(self.end - self.first, self.size)[group]
        rows = self.first[group] + (tile - before) * self.size
        rows = rows[:, None] + lax.iota(jnp.int32, self.size)
        there = (tile < self.upto[-1])[:, None] & (rows < self.end[group][:, None])
        return group, rows, there

    def each(self, step: Callable[[Array, Array], Array], result: Array) -> Array:
        """The result after `step(start, result)` of all tiles there are."""
        if self.most <= self.at_once:
            return step(jnp.int32(0), result)

        def goes_on(carry: tuple[Array, Array]) -> Array:
            return carry[0] < self.upto[-1]

        def after(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            return carry[0] + self.at_once, step(*carry)

        return lax.while_loop(goes_on, after, (jnp.int32(0), result))[1]


def _tiles(op: LocalOp, sizes: GroupedSizes, counts: Array, rows: int) -> _Tiles:
    strategy = op.strategy
    ends = jnp.cumsum(counts.astype(jnp.int32))
    here = shift(op, strategy.operands[0], 0, sizes.rows)
    first, end = (jnp.clip(x - here, 0, rows) for x in (ends - counts.astype(jnp.int32), ends))
    state, dim = strategy.results[0], 0
    if not sizes.contracts_rows:
        state, dim = strategy.operands[1], sizes.matrix_dims[0]
    groups = sizes.groups // op.mesh.product(state.dims[dim])
    if groups < sizes.groups:
        own = shift(op, state, dim, sizes.groups)
        first, end = (lax.dynamic_slice(x, (own,), (groups,)) for x in (first, end))
    size = min(sizes.tile_rows, rows)
    most = rows // size + min(groups, rows)
    upto = jnp.cumsum(_over(end - first, size))
    return _Tiles(rows, size, first, end, upto, min(TILES_AT_ONCE, most), most)


def _over(x: Array, size: int) -> Array:
    """Quotient, rounded up."""
    return (x + (size - 1)) // size


def _taken(x: Array, rows: Array) -> Array:
    """Some rows; of numbers beyond the last, the last."""
    return jnp.take(x, rows, axis=0, mode="clip")


def _rows(op: LocalOp, tiles: _Tiles, sizes: GroupedSizes, lhs: Array, rhs: Array) -> Array:
    """Rows times the matrices of their groups; zero for rows of other groups."""
    group_dim, inner, _ = sizes.matrix_dims
    params, result = op.params, op.local_results[0]

    def step(start: Array, out: Array) -> Array:
        group, rows, there = tiles.of(start)
        matrices = jnp.take(rhs, group, axis=group_dim, mode="clip")
        found = lax.dot_general(
            _taken(lhs, rows), matrices, (((2,), (inner,)), ((0,), (group_dim,))),
            precision=params["precision"], preferred_element_type=out.dtype,
        )  # fmt: skip
        # all numbers differ, also of what is left out
        beyond = tiles.rows + lax.iota(jnp.int32, rows.size).reshape(rows.shape)
        place = jnp.where(there, rows, beyond)
        return out.at[place].set(found, mode="drop", unique_indices=True)

    return tiles.each(step, jnp.zeros(result.shape, result.dtype))


def _gradient(op: LocalOp, tiles: _Tiles, lhs: Array, rhs: Array) -> Array:
    """For each group the product of its rows, added up in float32 at least."""
    params, result = op.params, op.local_results[0]
    sum_type = jnp.promote_types(result.dtype, jnp.float32)

    def step(start: Array, out: Array) -> Array:
        group, rows, there = tiles.of(start)
        left, right = (
            jnp.where(there[..., None], x, jnp.zeros((), x.dtype))
            for x in (_taken(lhs, rows), _taken(rhs, rows))
        )
        found = lax.dot_general(
            left, right, (((1,), (1,)), ((0,), (0,))),
            precision=params["precision"], preferred_element_type=sum_type,
        )  # fmt: skip
        return out.at[group].add(found)

    found = tiles.each(step, jnp.zeros(result.shape, sum_type))
    return found.astype(result.dtype)
