# pyright: basic
"""Exchanges of rows between the devices that ask for them and those that hold them.

A device asks for some rows of each other one, in the order of the holders. All devices know how
many every one asks of every one. Rows go to their holders, or come from these, in rounds of as many
rows as a holder sends or receives at once, which it takes in the order of the devices that ask:
nothing depends on a bound. The first round is not in a loop, so that it may run beside compute.

    sent     exactly the rows that there are, by `jax.lax.ragged_all_to_all`
    memory   the rows of one round

Where that collective is not to be had, as in XLA for CPUs, blocks of an equal share of a round go
to every device, as often as the largest number of rows between two devices needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax

from ir import EXCHANGE, ReshardStep, StepKind, TensorType, replicated

Array = Any
Noted = tuple[ReshardStep, TensorType]
INDEX: Final = jnp.int32


@dataclass(frozen=True)
class Asked:
    """Rows that devices along some axes ask each other for.

    room: rows of a round.
    counts: of rows that device d asks of holder h at [d, h].
    """

    axes: tuple[str, ...]
    room: int
    counts: Array

    @property
    def rounds(self) -> Array:
        """As the busiest holder needs."""
        most = jnp.max(jnp.sum(self.counts, axis=0))
        return (most + (self.room - 1)) // self.room

    def round(self, r: Array) -> Round:
        """What moves in round r."""
        zero = jnp.zeros((), INDEX)
        before = jnp.cumsum(self.counts, axis=0, dtype=INDEX) - self.counts  # in the holder
        at = jnp.cumsum(self.counts, axis=1, dtype=INDEX) - self.counts  # in the device that asks
        first = jnp.clip(before - r * self.room, zero, self.room)
        end = jnp.clip(before + self.counts - r * self.room, zero, self.room)
        done = jnp.clip(r * self.room - before, zero, self.counts)
        return Round(self, r, lax.axis_index(self.axes), first, end - first, at + done)

    def each(self, step: Callable[[Round, Array], Array], result: Array) -> Array:
        """The result after `step` of all rounds."""
        return self.later(step, step(self.first, result))

    @property
    def first(self) -> Round:
        """The first round."""
        return self.round(jnp.zeros((), INDEX))

    def later(self, step: Callable[[Round, Array], Array], result: Array) -> Array:
        """The result of the first round after `step` of the others."""
        return after_first(self.rounds, lambda r, result: step(self.round(r), result), result)


def repeated(rounds: Array, step: Callable[[Array, Array], Array], result: Array) -> Array:
    """The result after `step(r, result)` for r from 0 to `rounds`, at least once."""
    return after_first(rounds, step, step(jnp.zeros((), INDEX), result))


def after_first(rounds: Array, step: Callable[[Array, Array], Array], result: Array) -> Array:
    """`step(r, result)` of one after the other for r from 1 to `rounds`, not included."""
    with jax.named_scope(EXCHANGE):  # for readers of the compiled text
        start = jnp.ones((), INDEX), result
        return lax.while_loop(lambda c: c[0] < rounds, lambda c: (c[0] + 1, step(*c)), start)[1]


@dataclass(frozen=True)
class Round:
    """The rows of one round, from or to device d of holder h at [d, h].

    number: of the round; here: of this device.
    first: in the round of the holder; size: how many; at: in the order of the device that asks.
    """

    asked: Asked
    number: Array
    here: Array
    first: Array
    size: Array
    at: Array

    @property
    def count(self) -> Array:
        """Rows of this holder's round."""
        return jnp.sum(self.size[:, self.here])

    def to_holders(self, x: Array) -> Array:
        """Rows in the order of this device, as each holder has those of its round, zeros behind."""
        mine = self.here
        start, size, to = (table[mine] for table in (self.at, self.size, self.first))
        comes, put = (table[:, mine] for table in (self.size, self.first))
        into = jnp.zeros((self.asked.room, *x.shape[1:]), x.dtype)
        return self._moved(x, into, _Moves(start, size, to, comes, put, jnp.max(self.size)))

    def from_holders(self, x: Array, result: Array) -> Array:
        """A result in the order of this device, with the rows of the round of their holders."""
        mine = self.here
        start, size, to = (table[:, mine] for table in (self.first, self.size, self.at))
        comes, put = (table[mine] for table in (self.size, self.at))
        return self._moved(x, result, _Moves(start, size, to, comes, put, jnp.max(self.size)))

    def _moved(self, x: Array, into: Array, moves: _Moves) -> Array:
        asked, words = self.asked, words_of(x.dtype)
        # as words, which no compiler rounds on their way
        sent, there = (lax.bitcast_convert_type(y, words) for y in (x, into))
        on_cpus, others = moves.in_blocks(asked), moves.at_once(asked.axes)
        found = lax.platform_dependent(sent, there, cpu=on_cpus, default=others)
        return lax.bitcast_convert_type(found, x.dtype)


@dataclass(frozen=True)
class _Moves:
    """Parts of this device's rows that go to others, and of theirs that come; one for each device.

    start, size: of what is sent; to: where the receiver has it.
    comes, put: how many rows are received, and where.
    most: rows between any two devices.
    """

    start: Array
    size: Array
    to: Array
    comes: Array
    put: Array
    most: Array

    def at_once(self, axes: tuple[str, ...]) -> Callable[[Array, Array], Array]:
        """The parts in one collective."""

        def run(x: Array, into: Array) -> Array:
            return lax.ragged_all_to_all(
                x, into, self.start, self.size, self.to, self.comes, axis_name=axes
            )

        return run

    def in_blocks(self, asked: Asked) -> Callable[[Array, Array], Array]:
        """The parts in blocks of equal sizes, as often as the largest needs."""

        def run(x: Array, into: Array) -> Array:
            block = block_rows(asked.room, self.size.shape[0])
            each = lax.iota(INDEX, block)

            def step(r: Array, into: Array) -> Array:
                rows = r * block + each
                places = jnp.minimum(self.start[:, None] + rows, x.shape[0] - 1)
                moved = lax.all_to_all(jnp.take(x, places, axis=0), asked.axes, 0, 0)
                to = jnp.where(rows < self.comes[:, None], self.put[:, None] + rows, into.shape[0])
                return into.at[to].set(moved, mode="drop")

            return repeated((self.most + (block - 1)) // block, step, into)

        return run


def block_rows(room: int, count: int) -> int:
    """Rows of a block for each of `count` devices, of a round of `room` rows."""
    return -(-room // count)


def words_of(dtype: Any) -> Any:
    """The type in which elements of a type are sent."""
    return jnp.dtype(f"uint{8 * jnp.dtype(dtype).itemsize}")


def noted(kind: StepKind, axes: tuple[str, ...], shape: Sequence[int], dtype: Any) -> Noted:
    """A collective of an op's first round, and what it is of, as emission notes them."""
    state = replicated(len(shape))
    step = ReshardStep(kind, axes, -1, -1, "", state, state)
    return step, TensorType(tuple(shape), str(words_of(dtype)))
