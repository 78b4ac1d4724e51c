# pyright: basic
"""A kernel of attention split along the sequence: its calls on blocks, and its permutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ir import ORDERED, ZIGZAG, ReshardStep, TensorType, has_bias, replicated, sequence_dim
from ir.evaluate import bind

from .local_op import LocalOp

Array = Any
Arrays = tuple[Array, ...]
Note = Callable[[ReshardStep, TensorType, float], None]

PLAIN = slice(4, 10)  # operands beside query, key, value and bias, which blocks have no use for


@dataclass(frozen=True)
class Blocks:
    """A kernel whose sequence is split over `axes` in a `way`.

    ordered: whether its operands are in the order of zigzag, and its results shall be.
    """

    op: LocalOp
    axes: tuple[str, ...]
    way: str
    causal: bool
    note: Note
    ordered: bool = False

    @property
    def count(self) -> int:
        return self.op.mesh.product(self.axes)

    @property
    def index(self) -> Array:
        """Number of this device along the axes."""
        return lax.axis_index(self.axes)

    @property
    def length(self) -> int:
        """Dimension of the sequence in queries, keys, values and outputs."""
        return sequence_dim(dict(self.op.node.attrs))

    def call(self, operands: Sequence[Array], *, causal: bool) -> list[Array]:
        """The kernel on a block; forward with the logarithms of the sums of exponentials."""
        params = {name: x for name, x in self.op.params.items() if name != ORDERED}
        if not causal:
            params["mask_type"] = type(params["mask_type"]).NO_MASK
        if "is_training" in params:
            params["is_training"] = True
        return bind(self.op.binding, operands, params)

    def passed(self, xs: Sequence[Array], by: int = 1) -> Arrays:
        """Shards of the device `by` places before, whose permutes XLA for GPUs makes one.

        They are sent as words, which no compiler rounds on their way.
        """
        pairs = [(i, (i + by) % self.count) for i in range(self.count)]
        words = [jnp.dtype(f"uint{8 * x.dtype.itemsize}") for x in xs]
        sent = map(lax.bitcast_convert_type, xs, words)
        moved = self.permuted(tuple(sent), pairs)
        dtypes = (x.dtype for x in xs)
        return tuple(map(lax.bitcast_convert_type, moved, dtypes))

    def permuted(self, xs: Sequence[Array], pairs: Sequence[tuple[int, int]]) -> Arrays:
        """Shards of other devices, by pairs of a source and a target."""
        for x in xs:
            state = replicated(x.ndim)
            step = ReshardStep("collective-permute", self.axes, -1, -1, "", state, state)
            self.note(step, TensorType(tuple(x.shape), str(x.dtype)), self.op.count)
        with jax.named_scope(self.way):
            return tuple(lax.ppermute(x, self.axes, pairs) for x in xs)

    def block(self, xs: Arrays, r: int) -> Arrays:
        """The blocks of round r, of which rings have no others."""
        if self.way != "t":
            return xs
        size = xs[0].shape[self.length] // self.count
        start = ((self.index - r) % self.count) * size
        return tuple(lax.dynamic_slice_in_dim(x, start, size, self.length) for x in xs)

    def pasted(self, whole: Arrays, xs: Sequence[Array], r: int) -> Arrays:
        """Whole gradients with those of the blocks of round r."""
        start = ((self.index - r) % self.count) * xs[0].shape[self.length]
        pairs = zip(whole, xs, strict=True)
        return tuple(
            lax.dynamic_update_slice_in_dim(x, new.astype(x.dtype), start, self.length)
            for x, new in pairs
        )

    # --- rows of a bias, [batch, heads, queries, keys], whose columns are those of all devices ---

    @property
    def has_bias(self) -> bool:
        return has_bias(dict(self.op.node.attrs))

    def columns(self, bias: Array, r: int) -> Array:
        """The bias of the keys of round r, whose order in zigzag is that of their chunks."""
        if not self.has_bias:
            return bias
        count, keys = self.count, (self.index - r) % self.count
        if self.way != ZIGZAG or self.ordered:
            return columns_of(bias, keys, count)
        chunks = keys, 2 * count - 1 - keys
        each = [columns_of(bias, chunk, 2 * count) for chunk in chunks]
        return bias if bias.shape[3] == 1 else jnp.concatenate(each, 3)

    def zigzag_rows(self, bias: Array) -> Array:
        """The rows of a bias in the order of zigzag."""
        if not self.has_bias or self.op.operands[3].shape[2] == 1:
            return bias
        return self.zigzag((bias,), (2,))[0]

    def first_half(self, keys: Arrays) -> Arrays:
        """The first half of a block of keys and values, and the columns of its bias."""
        *both, bias = keys
        return *(self.halves(x)[0] for x in both), self._half_of(bias, 3, 0)

    def for_second_half(self, keys: Arrays) -> Arrays:
        """A block of keys and values, and the rows of its bias for the second half of queries."""
        *both, bias = keys
        return *both, self._half_of(bias, 2, 1)

    def _half_of(self, bias: Array, dim: int, half: int) -> Array:
        whole = not self.has_bias or bias.shape[dim] == 1
        return bias if whole else self.halves(bias, dim)[half]

    # --- the order of zigzag -------------------------------------------------------------------

    def zigzag(self, xs: Arrays, dims: Sequence[int]) -> Arrays:
        """Shards [2 i, 2 i + 1] of 2 n chunks as chunks [i, 2 n - 1 - i]."""
        if self.ordered:
            return xs
        halves = [self.halves(x, dim) for x, dim in zip(xs, dims, strict=True)]
        even = self.permuted(tuple(first for first, _ in halves), self._places(0))
        odd = self.permuted(tuple(second for _, second in halves), self._places(1))
        pairs = zip(even, odd, dims, strict=True)
        return tuple(self._ordered(a, b, dim) for a, b, dim in pairs)

    def straight(self, xs: Arrays, dims: Sequence[int]) -> Arrays:
        """The inverse of `zigzag`."""
        if self.ordered:
            return xs
        halves: list[Arrays] = []
        for x, dim in zip(xs, dims, strict=True):
            first, second = self.halves(x, dim)
            halves.append(self.halves(self._ordered(first, second, dim), dim))
        even, odd = (
            self.permuted(tuple(x[half] for x in halves), [(b, a) for a, b in self._places(half)])
            for half in (0, 1)
        )
        return tuple(map(jnp.concatenate, zip(even, odd, strict=True), dims))

    def _places(self, half: int) -> list[tuple[int, int]]:
        """From which device to which its first (0) or second (1) chunk moves."""
        chunks = [2 * i + half for i in range(self.count)]
        return [(i, min(c, 2 * self.count - 1 - c)) for i, c in enumerate(chunks)]

    def _ordered(self, even: Array, odd: Array, dim: int) -> Array:
        """Chunks in order, of which a device with an even number has the even one first."""
        first = self.index % 2 == 0
        return jnp.concatenate([jnp.where(first, even, odd), jnp.where(first, odd, even)], dim)

    def halves(self, x: Array, dim: int | None = None) -> Arrays:
        """The first and the second chunk of a shard."""
        return tuple(jnp.split(x, 2, self.length if dim is None else dim))


def columns_of(bias: Array, number: Array, count: int) -> Array:
    """A part of `count` of the columns of a bias, of which one column is for all keys."""
    if bias.shape[3] == 1:
        return bias
    size = bias.shape[3] // count
    return lax.dynamic_slice_in_dim(bias, number * size, size, 3)


def joined(first: Array, second: Array, dim: int) -> Array:
    """Two parts of an array, one after the other."""
    return jnp.concatenate([first, second], dim)
