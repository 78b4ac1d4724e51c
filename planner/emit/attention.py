# pyright: basic
"""Attention kernels split along the sequence: a kernel call for each block of keys, merged.

Blocks of a causal mask need no offset: one below the diagonal has no mask, the one on it the mask
of its own, those above it are left out. With outputs o_r and logarithms l_r of the sums of
exponentials of each block,

    l = log sum_r exp l_r,    o = sum_r exp(l_r - l) o_r,

and each block's gradients are those of a kernel that is given l and o of the whole. Sums over
blocks are in float32. In round r device i works on the block of keys of device i - r.

`ir.ops.attention` says which ways to split there are.

Sources: Liu et al., Ring Attention, arXiv:2310.01889; Dao, FlashAttention-2, arXiv:2307.08691.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from ir import RING, ZIGZAG, ReshardStep, TensorType, is_causal, replicated, sequence_dim
from ir.evaluate import bind

from .local_op import LocalOp

Array = Any
Arrays = tuple[Array, ...]
Note = Callable[[ReshardStep, TensorType, float], None]

_PLAIN = slice(3, 10)  # operands beside query, key and value, which blocks have no use for


def attention(op: LocalOp, operands: Sequence[Array], note: Note) -> list[Array]:
    """Runs an attention kernel on local shards.

    Args:
        op: the kernel forward or backward.
        operands: shards as its strategy has them.
        note: told of every permute.
    """
    split = op.strategy.factor_axes(op.mesh)
    way = next((name for name in (RING, ZIGZAG, "t") if name in split), "")
    causal = is_causal(dict(op.node.attrs))
    if not way or (way == "t" and not causal):
        return bind(op.binding, operands, op.params)
    blocks = _Blocks(op, split[way], way, causal, note)
    run = _backward if len(operands) > _PLAIN.stop else _forward
    return run(blocks, operands)


@dataclass(frozen=True)
class _Blocks:
    """A kernel whose sequence is split over `axes` in a `way`."""

    op: LocalOp
    axes: tuple[str, ...]
    way: str
    causal: bool
    note: Note

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
        params = dict(self.op.params)
        if not causal:
            params["mask_type"] = type(params["mask_type"]).NO_MASK
        if "is_training" in params:
            params["is_training"] = True
        return bind(self.op.binding, operands, params)

    def passed(self, xs: Sequence[Array]) -> Arrays:
        """Shards of the device before."""
        return self.permuted(xs, [(i, (i + 1) % self.count) for i in range(self.count)])

    def permuted(self, xs: Sequence[Array], pairs: Sequence[tuple[int, int]]) -> Arrays:
        """Shards of other devices, by pairs of a source and a target."""
        for x in xs:
            state = replicated(x.ndim)
            step = ReshardStep("collective-permute", self.axes, -1, -1, "", state, state)
            self.note(step, TensorType(tuple(x.shape), str(x.dtype)), self.op.count)
        with jax.named_scope(self.way):
            return tuple(lax.ppermute(x, self.axes, pairs) for x in xs)

    def keys(self, xs: Arrays) -> Iterator[Arrays]:
        """Blocks of keys and values, one a round."""
        for r in range(self.count):
            if self.way == "t":
                yield self.cut(xs, r)
            else:
                xs = self.passed(xs) if r else xs
                yield xs

    def cut(self, xs: Arrays, r: int) -> Arrays:
        """The blocks of round r of whole keys and values."""
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

    # --- the order of zigzag -------------------------------------------------------------------

    def zigzag(self, xs: Arrays, dims: Sequence[int]) -> Arrays:
        """Shards [2 i, 2 i + 1] of 2 n chunks as chunks [i, 2 n - 1 - i]."""
        halves = [self.halves(x, dim) for x, dim in zip(xs, dims, strict=True)]
        even = self.permuted(tuple(first for first, _ in halves), self._places(0))
        odd = self.permuted(tuple(second for _, second in halves), self._places(1))
        pairs = zip(even, odd, dims, strict=True)
        return tuple(self._ordered(a, b, dim) for a, b, dim in pairs)

    def straight(self, xs: Arrays, dims: Sequence[int]) -> Arrays:
        """The inverse of `zigzag`."""
        halves = [
            self.halves(self._ordered(*self.halves(x, dim), dim), dim)
            for x, dim in zip(xs, dims, strict=True)
        ]
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


class _Work(Protocol):
    """What a device adds to its sums for a block of keys and values, as the mask has it."""

    def all(self, sums: Arrays, keys: Arrays) -> Arrays:
        """All queries see all keys."""
        ...

    def first_keys(self, sums: Arrays, keys: Arrays) -> Arrays:
        """All queries see the first half of the keys."""
        ...

    def second_queries(self, sums: Arrays, keys: Arrays) -> Arrays:
        """The second half of the queries sees all keys."""
        ...


def _added(blocks: _Blocks, work: _Work, r: int, sums: Arrays, keys: Arrays) -> Arrays:
    """The sums after round r: its block is of an earlier device, or of a later one."""
    if not blocks.causal:
        return work.all(sums, keys)
    earlier = blocks.index >= r
    if blocks.way != ZIGZAG:
        return lax.cond(earlier, lambda: work.all(sums, keys), lambda: sums)
    return lax.cond(
        earlier, lambda: work.first_keys(sums, keys), lambda: work.second_queries(sums, keys)
    )


# --- forward -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Outputs:
    """Outputs and logarithms of queries, merged block by block."""

    blocks: _Blocks
    query: Array
    rest: Arrays

    def part(self, query: Array, keys: Arrays, *, causal: bool = False) -> Arrays:
        out, lse = self.blocks.call((query, *keys, *self.rest), causal=causal)
        return out.astype(jnp.float32), lse

    def merged(self, sums: Arrays, query: Array, keys: Arrays) -> Arrays:
        """Outputs and logarithms of two sets of keys, as of their union."""
        each = sums, self.part(query, keys)
        lse = jnp.logaddexp(*(x[1] for x in each))
        out = sum(self._by_query(jnp.exp(x[1] - lse)) * x[0] for x in each)
        return out, lse

    def _by_query(self, x: Array) -> Array:
        """From [batch, heads, queries] to the layout of outputs, with one feature."""
        return (x if self.blocks.length == 2 else jnp.swapaxes(x, 1, 2))[..., None]

    def all(self, sums: Arrays, keys: Arrays) -> Arrays:
        return self.merged(sums, self.query, keys)

    def first_keys(self, sums: Arrays, keys: Arrays) -> Arrays:
        return self.merged(sums, self.query, tuple(self.blocks.halves(x)[0] for x in keys))

    def second_queries(self, sums: Arrays, keys: Arrays) -> Arrays:
        dims = self.blocks.length, 2
        first, second = zip(*map(self.blocks.halves, sums, dims), strict=True)
        second = self.merged(second, self.blocks.halves(self.query)[1], keys)
        return tuple(map(_joined, first, second, dims))


def _forward(blocks: _Blocks, operands: Sequence[Array]) -> list[Array]:
    given, dims = tuple(operands[:3]), (blocks.length, 2)
    if blocks.way == ZIGZAG:
        given = blocks.zigzag(given, (blocks.length,) * 3)
    work = _Outputs(blocks, given[0], tuple(operands[_PLAIN]))
    rounds = blocks.keys(given[1:])
    sums = work.part(given[0], next(rounds), causal=blocks.causal)
    for r, keys in enumerate(rounds, 1):
        sums = _added(blocks, work, r, sums, keys)
    found = sums[0].astype(operands[0].dtype), sums[1]
    if blocks.way == ZIGZAG:
        found = blocks.straight(found, dims)
    return list(found[: len(blocks.op.node.outputs)])


# --- backward ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gradients:
    """Gradients of queries, and of a block of keys and values, summed block by block.

    of_query: queries, logarithms, outputs and gradients of outputs.
    """

    blocks: _Blocks
    of_query: Arrays
    rest: Arrays

    def part(self, of_query: Arrays, keys: Arrays, *, causal: bool = False) -> Arrays:
        query, *others = of_query
        found = self.blocks.call((query, *keys, *self.rest, *others), causal=causal)
        return tuple(x.astype(jnp.float32) for x in found[:3])

    def all(self, sums: Arrays, keys: Arrays) -> Arrays:
        return tuple(map(jnp.add, sums, self.part(self.of_query, keys)))

    def first_keys(self, sums: Arrays, keys: Arrays) -> Arrays:
        d_query, *d_keys = sums
        new, *of_keys = self.part(self.of_query, tuple(self.blocks.halves(x)[0] for x in keys))
        return d_query + new, *map(self._added_to, d_keys, of_keys, (0, 0))

    def second_queries(self, sums: Arrays, keys: Arrays) -> Arrays:
        d_query, *d_keys = sums
        dims = self.dims
        second = tuple(
            self.blocks.halves(x, d)[1] for x, d in zip(self.of_query, dims, strict=True)
        )
        new, *of_keys = self.part(second, keys)
        return self._added_to(d_query, new, 1), *map(jnp.add, d_keys, of_keys)

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimension of the sequence in each of `of_query`."""
        return self.blocks.length, 2, self.blocks.length, self.blocks.length

    def _added_to(self, x: Array, new: Array, half: int) -> Array:
        """A sum with more in one of its halves."""
        both = list(self.blocks.halves(x))
        both[half] = both[half] + new
        return _joined(*both, self.blocks.length)


def _backward(blocks: _Blocks, operands: Sequence[Array]) -> list[Array]:
    length, whole = blocks.length, blocks.way == "t"
    of_query, of_keys = (operands[0], *operands[_PLAIN.stop :]), tuple(operands[1:3])
    if blocks.way == ZIGZAG:
        moved = blocks.zigzag((*of_query, *of_keys), (length, 2, *(length,) * 4))
        of_query, of_keys = moved[:4], moved[4:]
    work = _Gradients(blocks, of_query, tuple(operands[_PLAIN]))
    rounds = blocks.keys(of_keys)
    d_query, *d_keys = work.part(of_query, next(rounds), causal=blocks.causal)
    all_keys = blocks.pasted(tuple(map(jnp.zeros_like, of_keys)), d_keys, 0) if whole else ()
    for r, keys in enumerate(rounds, 1):
        d_keys = map(jnp.zeros_like, d_keys) if whole else blocks.passed(d_keys)
        d_query, *d_keys = _added(blocks, work, r, (d_query, *d_keys), keys)
        all_keys = blocks.pasted(all_keys, d_keys, r) if whole else ()
    found = (d_query, *(all_keys if whole else blocks.passed(d_keys)))
    found = tuple(x.astype(t.dtype) for x, t in zip(found, operands, strict=False))
    return list(blocks.straight(found, (length,) * 3) if blocks.way == ZIGZAG else found)


def _joined(first: Array, second: Array, dim: int) -> Array:
    return jnp.concatenate([first, second], dim)
