# pyright: basic
"""Grouped products whose rows and groups are split alike: matrices pass by from both sides.

Device d of n has rows d R to (d + 1) R, and matrices of the groups d G to (d + 1) G. In round r it
has the matrices of device d + r, and then of d - r, for r from 1 to the farthest that any device
needs, which follows from the sizes of all groups. A gradient goes the other way: sums for device d
begin at the farthest device that has rows of its groups, and every one on the way adds its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from costmodel import rounds_of
from ir import NEAR, ReshardStep, TensorType, replicated

from .attention_blocks import Note
from .group_tiles import Products, Tiles, bounds, tiles_of
from .local_op import LocalOp

Array = Any


@dataclass(frozen=True)
class Near:
    """A grouped product with rows and groups over the same axes.

    counts: rows of each group.
    rows: of this device.
    """

    op: LocalOp
    axes: tuple[str, ...]
    products: Products
    counts: Array
    rows: int
    note: Note

    @property
    def count(self) -> int:
        """Devices."""
        return self.op.mesh.product(self.axes)

    @property
    def groups(self) -> int:
        """Groups of a device."""
        return self.products.sizes.groups // self.count

    @property
    def index(self) -> Array:
        """Number of this device."""
        return lax.axis_index(self.axes)

    def tiles(self, device: Array) -> Tiles:
        """Tiles of this device's rows of the groups of another device, if there is such a one."""
        start = jnp.clip(device, 0, self.count - 1) * self.groups
        first, end = (
            lax.dynamic_slice(x, (start,), (self.groups,))
            for x in bounds(self.counts, self.index * self.rows, self.rows)
        )
        known = (device >= 0) & (device < self.count)
        return tiles_of(self.products.sizes, first, jnp.where(known, end, first), self.rows)

    def rounds(self, sign: int) -> Array:
        """How far up (1) or down (-1) the farthest groups are that any device has rows of."""
        device = jnp.arange(self.count, dtype=jnp.int32)[:, None]
        first, end = bounds(self.counts, device * self.rows, self.rows)
        holder = jnp.arange(self.products.sizes.groups, dtype=jnp.int32) // self.groups
        return jnp.max(jnp.where(end > first, (holder - device) * sign, 0))

    def passed(self, x: Array, by: int) -> Array:
        """What the device `by` places before has."""
        pairs = [(i, (i + by) % self.count) for i in range(self.count)]
        words = jnp.dtype(f"uint{8 * x.dtype.itemsize}")  # which no compiler rounds on their way
        moved = lax.ppermute(lax.bitcast_convert_type(x, words), self.axes, pairs)
        return lax.bitcast_convert_type(moved, x.dtype)

    def loop(self, x: Array, rounds: Array, step: Callable[[Array, Any], Any], start: Any) -> Any:
        """`step(r, carry)` for r from 1 to `rounds`, which has one permute of an array like `x`."""
        state, expected = replicated(x.ndim), float(rounds_of(np.array(float(self.count))))
        permute = ReshardStep("collective-permute", self.axes, -1, -1, "", state, state)
        type_ = TensorType(tuple(x.shape), str(x.dtype))
        self.note(permute, type_, self.op.count * expected)
        with jax.named_scope(f"{NEAR}{self.count}"):  # for readers of the compiled text
            return lax.while_loop(
                lambda c: c[0] <= rounds, lambda c: (c[0] + 1, step(*c)), (jnp.int32(1), start)
            )[1]


def near_rows(near: Near, lhs: Array, rhs: Array) -> Array:
    """Rows times the matrices of their groups."""
    result = near.op.local_results[0]
    out = jnp.zeros(result.shape, result.dtype)
    out = near.products.rows(near.tiles(near.index), lhs, rhs, out)
    for sign in (1, -1):

        def step(r: Array, carry: Any, sign: int = sign) -> Any:
            matrices, out = near.passed(carry[0], -sign), carry[1]
            tiles = near.tiles(near.index + sign * r)
            return matrices, near.products.rows(tiles, lhs, matrices, out)

        _, out = near.loop(rhs, near.rounds(sign), step, (rhs, out))
    return out


def near_gradient(near: Near, lhs: Array, rhs: Array) -> Array:
    """For each of a device's groups the product of its rows on all devices, in a wide type."""
    result, wide = near.op.local_results[0], near.products.sum_type
    zeros = jnp.zeros(result.shape, wide)
    total = near.products.gradient(near.tiles(near.index), lhs, rhs, zeros)
    for sign in (1, -1):
        rounds = near.rounds(sign)

        def step(r: Array, sums: Any, sign: int = sign, rounds: Array = rounds) -> Any:
            tiles = near.tiles(near.index + sign * (rounds + 1 - r))
            return near.passed(near.products.gradient(tiles, lhs, rhs, sums), sign)

        total = total + near.loop(zeros, rounds, step, zeros)
    return total
