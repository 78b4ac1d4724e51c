# pyright: basic
"""Tiles of the groups of a device's rows, and products of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from costmodel import GroupedWork
from ir import TILE_STEPS, TILES_AT_ONCE, GroupedSizes

from .local_op import LocalOp

Array = Any


@dataclass(frozen=True)
class Tiles:
    """Tiles of some groups in a device's rows; arrays have one entry per group.

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

    def each(self, step: Callable[[Array, Array], Array], result: Array, steps: int) -> Array:
        """The result after `step(start, result)` of all tiles there are.

        Args:
            step: of `at_once` tiles.
            result: before it.
            steps: that are expected, for readers of the compiled text.
        """
        if self.most <= self.at_once:
            return step(jnp.int32(0), result)

        def goes_on(carry: tuple[Array, Array]) -> Array:
            return carry[0] < self.upto[-1]

        def after(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            return carry[0] + self.at_once, step(*carry)

        with jax.named_scope(f"{TILE_STEPS}{steps}"):
            return lax.while_loop(goes_on, after, (jnp.int32(0), result))[1]


def bounds(counts: Array, here: Array, rows: int) -> tuple[Array, Array]:
    """First and end of each group in the `rows` rows from number `here` on.

    A group of a negative size has no rows, and those after it begin so much earlier, as in JAX.
    """
    counts = counts.astype(jnp.int32)
    ends = jnp.cumsum(counts)
    first, end = (jnp.clip(x - here, 0, rows) for x in (ends - counts, ends))
    return first, jnp.maximum(first, end)


def tiles_of(sizes: GroupedSizes, first: Array, end: Array, rows: int) -> Tiles:
    """Tiles of groups by their first rows and ends among `rows` rows."""
    size = min(sizes.tile_rows, rows)
    most = rows // size + min(first.shape[0], rows)
    upto = jnp.cumsum(_over(end - first, size))
    return Tiles(rows, size, first, end, upto, min(TILES_AT_ONCE, most), most)


def _over(x: Array, size: int) -> Array:
    """Quotient, rounded up."""
    return (x + (size - 1)) // size


def _taken(x: Array, rows: Array) -> Array:
    """Some rows; of numbers beyond the last, the last."""
    return jnp.take(x, rows, axis=0, mode="clip")


@dataclass(frozen=True)
class Products:
    """Products of tiles, in the precision of an op."""

    op: LocalOp
    sizes: GroupedSizes

    @property
    def sum_type(self) -> Any:
        """Type in which gradients are added up."""
        return jnp.promote_types(self.op.local_results[0].dtype, jnp.float32)

    @cached_property
    def steps(self) -> int:
        """Steps of all tiles of a device, as they are priced."""
        mesh, parts = self.op.mesh, self.op.strategy.factor_axes(self.op.mesh)
        ways = {name: np.array([float(mesh.product(axes))]) for name, axes in parts.items()}
        work = GroupedWork(self.sizes, self.op.operands[0].dtype, ways)
        return max(math.ceil(float(np.max(work.tiles / work.at_once))), 1)

    def rows(
        self, tiles: Tiles, lhs: Array, rhs: Array, out: Array, steps: int | None = None
    ) -> Array:
        """`out` with the rows of the tiles times the matrices of their groups, in some steps."""
        group_dim, inner, _ = self.sizes.matrix_dims

        def step(start: Array, out: Array) -> Array:
            group, rows, there = tiles.of(start)
            found = lax.dot_general(
                _taken(lhs, rows), jnp.take(rhs, group, axis=group_dim, mode="clip"),
                (((2,), (inner,)), ((0,), (group_dim,))),
                precision=self.op.params["precision"], preferred_element_type=out.dtype,
            )  # fmt: skip
            # all numbers differ, also of what is left out
            beyond = tiles.rows + lax.iota(jnp.int32, rows.size).reshape(rows.shape)
            place = jnp.where(there, rows, beyond)
            return out.at[place].set(found, mode="drop", unique_indices=True)

        return tiles.each(step, out, steps or self.steps)

    def gradient(
        self, tiles: Tiles, lhs: Array, rhs: Array, sums: Array, steps: int | None = None
    ) -> Array:
        """`sums` with, for each group, the product of its rows in the tiles, in some steps."""

        def step(start: Array, sums: Array) -> Array:
            group, rows, there = tiles.of(start)
            left, right = (
                jnp.where(there[..., None], x, jnp.zeros((), x.dtype))
                for x in (_taken(lhs, rows), _taken(rhs, rows))
            )
            found = lax.dot_general(
                left, right, (((1,), (1,)), ((0,), (0,))),
                precision=self.op.params["precision"], preferred_element_type=sums.dtype,
            )  # fmt: skip
            return sums.at[group].add(found)

        return tiles.each(step, sums, steps or self.steps)
