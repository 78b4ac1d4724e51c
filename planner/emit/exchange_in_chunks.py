# pyright: basic
"""Exchanges in chunks: all-to-alls chunk by chunk, and products that make or read the chunks.

A value in chunks is also there as a whole, put together; whoever reads it so has nothing to know of
chunks, and what nobody reads is never made. Products next to an exchange run chunk by chunk, and so
do the ops between the two. Nothing holds chunks apart: a scheduler that starts collectives early
has the exchange of a chunk run beside the product of another.

Source: Li et al., Lancet, MLSys 2024, arXiv:2404.19429, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import LoweredPlan, chunks_of, is_product, lookup, neighbours_of
from ir.analysis import Site, Specs

from .local_op import LocalOp
from .slices import bind_inside

Array = Any


@dataclass(frozen=True)
class Chunks:
    """A value in chunks along a dimension."""

    parts: tuple[Array, ...]
    dim: int


@dataclass
class Known:
    """Arrays that are there in chunks, by their ids."""

    found: dict[int, tuple[Array, Chunks]] = field(default_factory=dict[int, tuple[Array, Chunks]])

    def note(self, parts: Sequence[Array], dim: int) -> Array:
        """The chunks put together."""
        whole = jnp.concatenate(parts, axis=dim)
        self.found[id(whole)] = whole, Chunks(tuple(parts), dim)
        return whole

    def of(self, x: Array) -> Chunks | None:
        """The chunks of an array that is there in chunks."""
        found = self.found.get(id(x))
        return None if found is None else found[1]

    def cut(self, x: Array, dim: int, count: int) -> tuple[Array, ...]:
        """Chunks of an array, those that it was put together from where they are the same."""
        chunks = self.of(x)
        if chunks is not None and chunks.dim == dim and len(chunks.parts) == count:
            return chunks.parts
        size = x.shape[dim] // count
        return tuple(lax.slice_in_dim(x, k * size, (k + 1) * size, axis=dim) for k in range(count))


@dataclass(frozen=True)
class Cuts:
    """What runs in chunks in a plan.

    sites: dimension and number of chunks of an exchange.
    products: factor and number of chunks of a product, by its flat number.
    between: ops between the two, likewise.
    """

    sites: Mapping[Site, tuple[int, int]]
    products: Mapping[int, tuple[str, int]]
    between: frozenset[int]


def cuts_of(plan: LoweredPlan) -> Cuts:
    """What runs in chunks in a plan."""
    exchanges = [r for r in plan.reshards if r.chunks > 1]
    sites, products, between = {}, {}, frozenset[int]()
    if exchanges:
        specs = Specs(plan.flat)
        near = neighbours_of(plan.flat, specs.of)
        numbers = {p.site: n for n, p in enumerate(plan.flat.passages)}
    for reshard in exchanges:
        site = reshard.passage.site
        found = near[numbers[site]]
        dim = chunks_of(reshard.change, found, plan.mesh)
        assert dim is not None, "the lowered plan has it in chunks"
        sites[site] = dim, reshard.chunks
        for i, factor in found.factors(dim):
            products.setdefault(i, (factor, reshard.chunks))
        between |= found.between(dim)
    return Cuts(sites, products, between)


def run_in_chunks(
    op: LocalOp, number: int, operands: Sequence[Array], cuts: Cuts, known: Known
) -> list[Array] | None:
    """Runs an op chunk by chunk: products beside an exchange, ops between the two.

    So do others that are element by element, where all of their operands are there in chunks.

    Args:
        op: the op.
        number: its flat number.
        operands: shards as its strategy has them.
        cuts: what runs in chunks.
        known: arrays that are there in chunks.
    """
    if number in cuts.products and is_product(op.node):
        return _product(op, operands, *cuts.products[number], known)
    chunks = _chunks(op, operands, known, partly=number in cuts.between)
    return None if chunks is None else _between(op, operands, chunks, known)


def _chunks(op: LocalOp, operands: Sequence[Array], known: Known, *, partly: bool) -> Chunks | None:
    """Chunks of the operands of an op that can run chunk by chunk; with `partly` of one of them."""
    turns = op.node.op == "transpose"
    if not known.found or not (turns or lookup(op.node.op).family == "elementwise"):
        return None
    large = [x for x in operands if x.ndim]
    if not turns and any(x.shape != op.local_results[0].shape for x in large):
        return None
    found = [known.of(x) for x in large]
    first = next((chunks for chunks in found if chunks is not None), None)
    if first is None or partly:
        return first
    form = first.dim, len(first.parts)
    alike = all(c is not None and (c.dim, len(c.parts)) == form for c in found)
    return first if alike else None


def _product(
    op: LocalOp, operands: Sequence[Array], factor: str, count: int, known: Known
) -> list[Array] | None:
    spec = lookup(op.node.op).factors(op.operands, op.node.outputs, dict(op.node.attrs))
    (result,) = spec.results
    (position,) = (k for k, dims in enumerate(spec.operands) if (factor,) in dims)
    dim = spec.operands[position].index((factor,))
    if operands[position].shape[dim] % count:
        return None
    parts = []
    for part in known.cut(operands[position], dim, count):
        local = [part if k == position else x for k, x in enumerate(operands)]
        parts += bind_inside(op.node.op, op.binding, local, op.params)
    return [known.note(parts, result.index((factor,)))]


def _between(op: LocalOp, operands: Sequence[Array], first: Chunks, known: Known) -> list[Array]:
    count, dim = len(first.parts), first.dim
    cut = (known.cut(x, dim, count) if x.ndim else (x,) * count for x in operands)
    each = zip(*cut, strict=True)
    parts = [bind_inside(op.node.op, op.binding, list(xs), op.params)[0] for xs in each]
    if op.node.op == "transpose":
        dim = tuple(op.params["permutation"]).index(dim)
    return [known.note(parts, dim)]
