# pyright: basic
"""Lookups of rows of a table that other devices hold, and rows that are added to theirs.

Every device has T / n rows of the table and R = M / n lookups. It orders these by the holders of
their rows, tells all devices how many it has of each, and sends numbers of rows to the holders.
Looked up rows come back to the places of their lookups; rows that are added go along with their
numbers. A round has R rows, so that there is one where every row is looked up equally often. Blocks
with lookups of their own lie behind each other in what a device holds.

Source: the dispatch and combination of Lepikhin et al., GShard, arXiv:2006.16668, without capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import EXCHANGE

from .attention_blocks import Note
from .index import fill_value
from .local_op import LocalOp
from .row_exchange import INDEX, Asked, Round, noted
from .slices import columns_of, within

Array = Any


@dataclass(frozen=True)
class _Lookups:
    """Lookups of this device.

    order: by the holders of their rows, those without a row last.
    numbers: of the rows in their holders, in that order.
    """

    asked: Asked
    order: Array
    numbers: Array


def _lookups(op: LocalOp, indices: Array, known: Array, note: Note) -> _Lookups:
    """Lookups by their numbers of rows in the whole table, or in their block, that are known."""
    axes = op.strategy.factor_axes(op.mesh)[EXCHANGE]
    count, table = op.mesh.product(axes), op.local_operands[0].shape
    held = table[indices.ndim - 1]
    holder = jnp.where(known, indices // held, count).astype(INDEX).reshape(-1)
    order = jnp.argsort(holder, stable=True).astype(INDEX)
    own = jnp.zeros(count, INDEX).at[holder].add(1, mode="drop")
    room = indices.size
    note(*noted("all-gather", axes, (count,), INDEX), op.count)
    note(*noted("all-to-all", axes, (room,), INDEX), op.count)
    note(*noted("all-to-all", axes, (room, *table[indices.ndim :]), op.operands[0].dtype), op.count)
    numbers = (indices % held).astype(INDEX)
    if indices.ndim > 1:  # blocks behind each other
        numbers = numbers + lax.broadcasted_iota(INDEX, indices.shape, 0) * held
    asked = Asked(axes, room, lax.all_gather(own, axes))
    return _Lookups(asked, order, numbers.reshape(-1)[order])


def _flat(x: Array, lead: int) -> Array:
    """Rows of all blocks behind each other."""
    return x.reshape(-1, *x.shape[lead:])


def exchanged_gather(op: LocalOp, operands: Sequence[Array], note: Note) -> list[Array]:
    """Rows of a table, split over the same axes as their lookups.

    Args:
        op: the gather.
        operands: shards of the table and of the indices.
        note: told of every collective.
    """
    table, indices = operands
    lead = indices.ndim - 1
    (column,), last = columns_of(indices), op.operands[0].shape[lead - 1] - 1
    fills = op.params["mode"].name == "FILL_OR_DROP"
    known = within(column, last) if fills else jnp.ones(column.shape, bool)
    lookups = _lookups(op, jnp.clip(column, 0, last), known, note)
    held = _flat(table, lead)

    def step(this: Round, found: Array) -> Array:
        numbers = this.to_holders(lookups.numbers)
        return this.from_holders(jnp.take(held, numbers, axis=0, mode="clip"), found)

    count = lookups.asked.room
    found = lookups.asked.each(step, jnp.zeros((count, *held.shape[1:]), table.dtype))
    place = jnp.zeros_like(lookups.order).at[lookups.order].set(lax.iota(INDEX, count))
    rows = jnp.take(found, place, axis=0, mode="clip").reshape(*column.shape, *held.shape[1:])
    if fills:
        filled = jnp.full_like(rows, fill_value(op.params["fill_value"], rows.dtype))
        rows = jnp.where(known.reshape(*known.shape, *(1,) * (rows.ndim - lead)), rows, filled)
    return [rows]


def exchanged_add(op: LocalOp, operands: Sequence[Array], note: Note) -> list[Array]:
    """A table with rows added to it, split over the same axes as these; arguments likewise."""
    table, indices, rows = operands
    lead = indices.ndim - 1
    (column,), last = columns_of(indices), op.operands[0].shape[lead - 1] - 1
    clips = op.params["mode"].name == "CLIP"
    known = jnp.ones(column.shape, bool) if clips else within(column, last)
    lookups = _lookups(op, jnp.clip(column, 0, last), known, note)
    ordered = jnp.take(_flat(rows, lead), lookups.order, axis=0, mode="clip")

    def step(this: Round, table: Array) -> Array:
        to, added = this.to_holders(lookups.numbers), this.to_holders(ordered)
        to = jnp.where(lax.iota(INDEX, lookups.asked.room) < this.count, to, table.shape[0])
        return table.at[to].add(added, mode="drop")

    return [lookups.asked.each(step, _flat(table, lead)).reshape(table.shape)]
