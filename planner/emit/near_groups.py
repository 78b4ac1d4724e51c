# pyright: basic
"""Grouped products whose rows and groups are split alike: devices fetch the matrices they lack.

Device d of n has rows d R to (d + 1) R, and matrices of the groups d G to (d + 1) G. Sizes of all
groups tell every device which groups all others have rows of, and so which matrices it sends to
whom. What a device lacks comes in rounds of `costmodel.fetched_of` matrices. Sums of the gradient
go the other way, and are added up where their groups are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from costmodel import fetched_of

from .group_tiles import Products, Tiles, bounds, tiles_of
from .local_op import LocalOp
from .row_exchange import INDEX, Asked, Round, after_first, repeated

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

    @cached_property
    def count(self) -> int:
        """Devices."""
        return self.op.mesh.product(self.axes)

    @cached_property
    def groups(self) -> int:
        """Groups of a device."""
        return self.products.sizes.groups // self.count

    @cached_property
    def room(self) -> int:
        """Matrices of a round."""
        found = fetched_of(float(self.products.sizes.groups), np.array(float(self.count)))
        return max(int(found), 1)

    def shape(self) -> tuple[int, ...]:
        """Of the matrices of a round, or of sums of the gradient."""
        sizes, op = self.products.sizes, self.op
        if sizes.contracts_rows:
            return (self.room, *op.local_results[0].shape[1:])
        matrices, dim = op.local_operands[1].shape, sizes.matrix_dims[0]
        return (self.room, *matrices[:dim], *matrices[dim + 1 :])

    @cached_property
    def index(self) -> Array:
        """Number of this device."""
        return lax.axis_index(self.axes)

    @cached_property
    def lacking(self) -> Array:
        """Whether device d has rows of a group that it does not hold, at [d, group]."""
        device = lax.iota(INDEX, self.count)[:, None]
        first, end = bounds(self.counts, device * self.rows, self.rows)
        holder = lax.iota(INDEX, self.products.sizes.groups) // self.groups
        return (end > first) & (holder != device)

    @cached_property
    def place(self) -> Array:
        """Number of a group among those that device d lacks, at [d, group]."""
        lacking = self.lacking.astype(INDEX)
        return jnp.cumsum(lacking, axis=1, dtype=INDEX) - lacking

    @cached_property
    def rounds(self) -> Array:
        """As the device needs that lacks most."""
        most = jnp.max(jnp.sum(self.lacking, axis=1, dtype=INDEX))
        return (most + (self.room - 1)) // self.room

    @property
    def own_steps(self) -> int:
        """Steps of own tiles, all but the one of fetched matrices."""
        return max(self.products.steps - 1, 1)

    def own_tiles(self) -> Tiles:
        """Tiles of this device's rows of its own groups."""
        first, end = bounds(self.counts, self.index * self.rows, self.rows)
        start = self.index * self.groups
        first, end = (lax.dynamic_slice(x, (start,), (self.groups,)) for x in (first, end))
        return tiles_of(self.products.sizes, first, end, self.rows)

    def fetch(self, r: Array) -> Fetch:
        """What is lacking in round r."""
        wanted = self.lacking & (self.place // self.room == r)
        counts = jnp.sum(wanted.reshape(self.count, self.count, self.groups), 2, dtype=INDEX)
        return Fetch(self, wanted, Asked(self.axes, self.room, counts))


@dataclass(frozen=True)
class Fetch:
    """Matrices that devices lack in one round of them; wanted: by device d of a group."""

    near: Near
    wanted: Array
    asked: Asked

    def tiles(self) -> Tiles:
        """Tiles of this device's rows of the groups that it lacks, in the order of these."""
        near = self.near
        group = _chosen(self.wanted[near.index], jnp.zeros((), INDEX), near.room)
        first, end = bounds(near.counts, near.index * near.rows, near.rows)
        first, end = (jnp.take(x, group, mode="fill", fill_value=0) for x in (first, end))
        return tiles_of(near.products.sizes, first, end, near.rows)

    def held(self, this: Round) -> Array:
        """Groups of this device, by their numbers in it, that its round is about."""
        near = self.near
        mine = self.wanted.reshape(near.count, near.count, near.groups)[:, near.index]
        found = _chosen(mine.reshape(-1), this.number, near.room)
        return jnp.where(found < mine.size, found % near.groups, near.groups)


def _chosen(flags: Array, r: Array, room: int) -> Array:
    """Places of `room` flags that are set, from number r `room` on; beyond the last where none."""
    number = jnp.cumsum(flags, dtype=INDEX) - 1 - r * room
    to = jnp.where(flags & (number >= 0) & (number < room), number, room)
    places = lax.iota(INDEX, flags.shape[0])
    return jnp.full(room, flags.shape[0], INDEX).at[to].set(places, mode="drop")


def near_rows(near: Near, lhs: Array, rhs: Array) -> Array:
    """Rows times the matrices of their groups.

    The first round of matrices is on its way beside the product of the rows of own groups.
    """
    result = near.op.local_results[0]
    out = jnp.zeros(result.shape, result.dtype)
    out = near.products.rows(near.own_tiles(), lhs, rhs, out, near.own_steps)
    first = _Matrices(near.fetch(jnp.zeros((), INDEX)), rhs)
    # both are there at once: else schedulers have the product after the exchange
    fetched, out = lax.optimization_barrier((first.received(first.asked.first, first.empty), out))
    out = first.times(lhs, first.asked.later(first.received, fetched), out)

    def step(r: Array, out: Array) -> Array:
        lacking = _Matrices(near.fetch(r), rhs)
        return lacking.times(lhs, lacking.asked.each(lacking.received, lacking.empty), out)

    return after_first(near.rounds, step, out)


@dataclass(frozen=True)
class _Matrices:
    """Matrices that a device lacks in one round, on their way from the devices that hold them."""

    fetch: Fetch
    rhs: Array

    @property
    def asked(self) -> Asked:
        return self.fetch.asked

    @property
    def empty(self) -> Array:
        """Room for them, as zeros."""
        return jnp.zeros(self.fetch.near.shape(), self.rhs.dtype)

    @property
    def dim(self) -> int:
        return self.fetch.near.products.sizes.matrix_dims[0]

    def received(self, this: Round, matrices: Array) -> Array:
        """The matrices, with those that a round of the exchange brings."""
        sent = jnp.take(self.rhs, self.fetch.held(this), axis=self.dim, mode="clip")
        return this.from_holders(jnp.moveaxis(sent, self.dim, 0), matrices)

    def times(self, lhs: Array, matrices: Array, out: Array) -> Array:
        """`out`, with the products of the rows of their groups filled in."""
        there, tiles = jnp.moveaxis(matrices, 0, self.dim), self.fetch.tiles()
        return self.fetch.near.products.rows(tiles, lhs, there, out, 1)


def near_gradient(near: Near, lhs: Array, rhs: Array) -> Array:
    """For each of a device's groups the product of its rows on all devices, in a wide type."""
    result, wide = near.op.local_results[0], near.products.sum_type

    def step(r: Array, total: Array) -> Array:
        fetch = near.fetch(r)
        zeros = jnp.zeros(near.shape(), wide)
        sums = near.products.gradient(fetch.tiles(), lhs, rhs, zeros, 1)

        def added(this: Round, total: Array) -> Array:
            return total.at[fetch.held(this)].add(this.to_holders(sums), mode="drop")

        return fetch.asked.each(added, total)

    total = jnp.zeros(result.shape, wide)
    total = near.products.gradient(near.own_tiles(), lhs, rhs, total, near.own_steps)
    return repeated(near.rounds, step, total)
