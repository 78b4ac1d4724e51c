# pyright: basic
"""Attention kernels split along the sequence: a kernel call for each block of keys, merged.

Blocks of a causal mask need no offset: one below the diagonal has no mask, the one on it the mask
of its own, those above it are left out. With outputs o_r and logarithms l_r of the sums of
exponentials of each block,

    l = log sum_r exp l_r,    o = sum_r exp(l_r - l) o_r,

and each block's gradients are those of a kernel that is given l and o of the whole. Sums over
blocks are in float32. In round r device i works on the block of keys of device i - r, beside the
permute of the next; a barrier after each round keeps compilers from sending all blocks at once.
Rows of a bias stay with their queries; a block takes the columns of its keys.

`ir.ops.attention` says which ways to split there are.

Sources: Liu et al., Ring Attention, arXiv:2310.01889; Dao, FlashAttention-2, arXiv:2307.08691.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp
from jax import lax

from ir import (
    HALO,
    MERGE,
    RING,
    ZIGZAG,
    is_causal,
    ordered_parts,
    to_straight,
    to_zigzag,
)
from ir.evaluate import bind
from ir.ordered_attention import reordered, results_reordered

from .attention_blocks import PLAIN, Arrays, Blocks, Note, joined
from .attention_merged import backward_merged, forward_merged
from .attention_window import backward_halo, forward_halo
from .local_op import LocalOp

Array = Any


def attention(op: LocalOp, operands: Sequence[Array], note: Note) -> list[Array]:
    """Runs an attention kernel on local shards.

    Args:
        op: the kernel forward or backward.
        operands: shards as its strategy has them.
        note: told of every permute.
    """
    split = op.strategy.factor_axes(op.mesh)
    if parts := ordered_parts(dict(op.node.attrs)):
        return _ordered(op, split.get(ZIGZAG, ()), parts, operands, note)
    if MERGE in split:
        return forward_merged(op, split[MERGE], operands, note)
    if "s" in split:
        return backward_merged(op, split["s"], operands)
    way = next((name for name in (HALO, RING, ZIGZAG, "t") if name in split), "")
    causal = is_causal(dict(op.node.attrs))
    if not way or (way == "t" and not causal):
        return bind(op.binding, operands, op.params)
    blocks = Blocks(op, split[way], way, causal, note)
    backward = len(operands) > PLAIN.stop
    if way == HALO:
        return backward_halo(blocks, operands) if backward else forward_halo(blocks, operands)
    return _backward(blocks, operands) if backward else _forward(blocks, operands)


def _ordered(
    op: LocalOp, axes: tuple[str, ...], parts: int, operands: Sequence[Array], note: Note
) -> list[Array]:
    """A kernel whose operands are in the order of zigzag of a number of parts.

    Over fewer devices each has several parts, which are put into the order of its own two chunks.
    """
    if not axes:
        return bind(op.binding, operands, op.params)
    blocks = Blocks(op, axes, ZIGZAG, causal=True, note=note, ordered=True)
    inside, given = parts // blocks.count, list(operands)
    if inside > 1:
        given = reordered(given, op.params, inside, to_straight, columns=blocks.count)
    found = _backward(blocks, given) if len(given) > PLAIN.stop else _forward(blocks, given)
    if inside > 1:
        found = results_reordered(op.node.op, found, op.params, inside, to_zigzag)
    return found


class _Work(Protocol):
    """What a device adds to its sums for a block of keys and values, as the mask has it."""

    def own(self, keys: Arrays) -> Arrays:
        """The sums of the device's own block alone, under the mask."""
        ...

    def all(self, sums: Arrays, keys: Arrays) -> Arrays:
        """All queries see all keys."""
        ...

    def first_keys(self, sums: Arrays, keys: Arrays) -> Arrays:
        """All queries see the first half of the keys."""
        ...

    def second_queries(self, sums: Arrays, keys: Arrays) -> Arrays:
        """The second half of the queries sees all keys."""
        ...


def _added(blocks: Blocks, work: _Work, r: int, sums: Arrays, keys: Arrays) -> Arrays:
    """The sums after round r: its block is the device's own, of an earlier or of a later one."""
    if r == 0:
        return work.own(keys)
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

    blocks: Blocks
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

    def own(self, keys: Arrays) -> Arrays:
        return self.part(self.query, keys, causal=self.blocks.causal)

    def all(self, sums: Arrays, keys: Arrays) -> Arrays:
        return self.merged(sums, self.query, keys)

    def first_keys(self, sums: Arrays, keys: Arrays) -> Arrays:
        return self.merged(sums, self.query, self.blocks.first_half(keys))

    def second_queries(self, sums: Arrays, keys: Arrays) -> Arrays:
        dims = self.blocks.length, 2
        first, second = zip(*map(self.blocks.halves, sums, dims), strict=True)
        query = self.blocks.halves(self.query)[1]
        second = self.merged(second, query, self.blocks.for_second_half(keys))
        return tuple(map(joined, first, second, dims))


def _forward(blocks: Blocks, operands: Sequence[Array]) -> list[Array]:
    given, dims, bias = tuple(operands[:3]), (blocks.length, 2), operands[3]
    if blocks.way == ZIGZAG:
        given = blocks.zigzag(given, (blocks.length,) * 3)
        bias = blocks.zigzag_rows(bias)
    work = _Outputs(blocks, given[0], tuple(operands[PLAIN]))
    keys, sums = given[1:], Arrays()
    for r in range(blocks.count):
        block = (*blocks.block(keys, r), blocks.columns(bias, r))
        if blocks.way != "t" and r + 1 < blocks.count:
            keys = blocks.passed(keys)
        sums = _added(blocks, work, r, sums, block)
        keys, sums = lax.optimization_barrier((keys, sums))
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

    blocks: Blocks
    of_query: Arrays
    rest: Arrays

    def part(self, of_query: Arrays, keys: Arrays, *, causal: bool = False) -> Arrays:
        query, *others = of_query
        found = self.blocks.call((query, *keys, *self.rest, *others), causal=causal)
        return tuple(x.astype(jnp.float32) for x in found[:3])

    def own(self, keys: Arrays) -> Arrays:
        return self.part(self.of_query, keys, causal=self.blocks.causal)

    def all(self, sums: Arrays, keys: Arrays) -> Arrays:
        return tuple(map(jnp.add, sums, self.part(self.of_query, keys)))

    def first_keys(self, sums: Arrays, keys: Arrays) -> Arrays:
        d_query, *d_keys = sums
        new, *of_keys = self.part(self.of_query, self.blocks.first_half(keys))
        return d_query + new, *map(self._added_to, d_keys, of_keys, (0, 0))

    def second_queries(self, sums: Arrays, keys: Arrays) -> Arrays:
        d_query, *d_keys = sums
        dims = self.dims
        second = tuple(
            self.blocks.halves(x, d)[1] for x, d in zip(self.of_query, dims, strict=True)
        )
        new, *of_keys = self.part(second, self.blocks.for_second_half(keys))
        return self._added_to(d_query, new, 1), *map(jnp.add, d_keys, of_keys)

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimension of the sequence in each of `of_query`."""
        return self.blocks.length, 2, self.blocks.length, self.blocks.length

    def _added_to(self, x: Array, new: Array, half: int) -> Array:
        """A sum with more in one of its halves."""
        first, second = self.blocks.halves(x)
        both = (first, second + new) if half else (first + new, second)
        return joined(both[0], both[1], self.blocks.length)


def _backward(blocks: Blocks, operands: Sequence[Array]) -> list[Array]:
    length, whole = blocks.length, blocks.way == "t"
    of_query, of_keys = (operands[0], *operands[PLAIN.stop :]), tuple(operands[1:3])
    bias = operands[3]
    if blocks.way == ZIGZAG:
        bias = blocks.zigzag_rows(bias)
        moved = blocks.zigzag((*of_query, *of_keys), (length, 2, *(length,) * 4))
        of_query, of_keys = moved[:4], moved[4:]
    work = _Gradients(blocks, of_query, tuple(operands[PLAIN]))
    keys, coming = of_keys, Arrays()
    d_query: Array = None
    d_keys: Sequence[Array] = ()
    all_keys = tuple(map(jnp.zeros_like, of_keys)) if whole else ()
    for r in range(blocks.count):
        block = (*blocks.block(keys, r), blocks.columns(bias, r))
        if not whole:  # gradients follow their keys one round later
            still = keys if r + 1 < blocks.count else ()
            moved = blocks.passed((*still, *d_keys))
            keys, coming = moved[: len(still)], moved[len(still) :]
        zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in block[:2])
        d_query, *d_keys = _added(blocks, work, r, (d_query, *zeros), block)
        if whole:
            all_keys = blocks.pasted(all_keys, d_keys, r)
        elif r > 0:
            d_keys = tuple(map(jnp.add, coming, d_keys))
        keys, d_query, d_keys = lax.optimization_barrier((keys, d_query, tuple(d_keys)))
    found = (d_query, *(all_keys if whole else blocks.passed(d_keys)))
    found = tuple(x.astype(t.dtype) for x, t in zip(found, operands, strict=False))
    return list(blocks.straight(found, (length,) * 3) if blocks.way == ZIGZAG else found)
