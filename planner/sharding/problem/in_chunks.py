"""Prices of exchanges in chunks, at the joins where a value is exchanged beside products.

Whether an exchange runs in chunks is no option of a node: the cost of a pair of states is the
smaller one, of the exchange as a whole and in 2, 4 or 8 chunks. The products beside it count with
their least seconds, as everything does that a collective may run beside (`windows.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel import InChunks, ProductChunks, in_chunks
from ir import (
    COUNTS,
    Mesh,
    Neighbours,
    ReshardStep,
    Sharding,
    TensorType,
    chunk_type,
    counts_of,
    cut_dim,
    exchanged,
)
from ir.analysis import operand_types

from ...solver.problem import Floats
from ..cost.least_seconds import least_in_chunks_s
from .overlap_tables import ChunksTable
from .records import Exchange, MenuCache, Sent, States
from .reshard_tables import by_state, reshards
from .skeleton import Outline

Ints = NDArray[np.intp]
_SAME = 1e-9  # relative difference below which a path is the exchange alone


class Exchanges:
    """Exchanges in chunks on one mesh.

    Args:
        cache: prices of the mesh.
        outline: outline of the program's problems.
    """

    def __init__(self, cache: MenuCache, outline: Outline) -> None:
        self.cache, self.outline, self.facts = cache, outline, outline.facts
        self.kinds: list[Neighbours] = []
        self.keys: list[object] = []
        # kind of the neighbours of each passage, -1 where there are none
        self.kind: Ints = np.full(len(self.facts.flat.passages), -1, dtype=np.intp)
        known = dict[object, int]()
        rounds = outline.windows.rounds
        for n, found in outline.neighbours.items():
            if rounds[n] < 1.0:  # sent beside the next round of a loop
                continue
            key = self._key(found)
            if key not in known:
                known[key] = len(self.kinds)
                self.kinds.append(found)
                self.keys.append(key)
            self.kind[n] = known[key]

    def _key(self, found: Neighbours) -> object:
        flat, traffic = self.facts.flat, self.facts.traffic
        return tuple(
            (
                flat.ops[b.op].node.attrs, operand_types(flat, flat.ops[b.op]), b.cuts,
                b.groups, b.copied_bytes,
                traffic.reads[b.op], traffic.launches[b.op],
                *(traffic.stored[v] for v in flat.ops[b.op].outputs),
            )
            for b in found.beside
        )  # fmt: skip

    def table(
        self, kind: int, rows: States, columns: States, type_: TensorType, weight: float
    ) -> ChunksTable | None:
        """Prices of the exchanges of a join; None if none of them runs in chunks.

        Args:
            kind: of the products beside it.
            rows: states of the value at its maker, under each option.
            columns: states in which it is wanted, likewise.
            type_: of the value.
            weight: runs in one call.
        """
        if kind < 0 or weight <= 0.0:
            return None
        cache = self.cache
        key = self.keys[kind], type_, id(rows), id(columns), weight
        if key not in cache.chunks:
            seconds = reshards(cache, rows, columns, type_, weight).table
            cache.chunks[key] = self._made(kind, type_, rows, columns, weight, seconds)
            cache.columns[("keep", id(rows))] = rows
            cache.columns[("keep", id(columns))] = columns
        return cache.chunks[key]

    def _made(
        self, kind: int, type_: TensorType, rows: States, columns: States, weight: float,
        seconds: Floats,
    ) -> ChunksTable | None:  # fmt: skip
        by_dim: dict[int, list[tuple[int, int, Exchange]]] = {}
        for r, c, sent in self._alone(kind, type_, rows, columns, seconds / weight):
            step, mesh = sent.step, self.cache.mesh
            moved = step.dim, step.to_dim
            dim = cut_dim(self.kinds[kind], type_, step.before, moved, mesh)
            if dim is not None:
                if dim not in sent.ways:
                    sent.ways[dim] = self._way(type_, dim, step)
                by_dim.setdefault(dim, []).append((r, c, sent.ways[dim]))
        each = [
            (found, self._prices(kind, type_, dim, [way for _, _, way in found]))
            for dim, found in by_dim.items()
        ]
        if not each:
            return None
        r, c = np.array([pair[:2] for found, _ in each for pair in found], dtype=np.intp).T
        prices = tuple(
            InChunks(
                count,
                *(
                    np.concatenate([getattr(prices[n], name) for _, prices in each]) * weight
                    for name in ("chunk_s", "part_s", "slower_s")
                ),
            )
            for n, count in enumerate(COUNTS)
        )
        return ChunksTable(r, c, prices)

    def prices(
        self, kind: int, type_: TensorType, dim: int, step: ReshardStep
    ) -> dict[int, InChunks]:
        """Prices of one run of an exchange, by the number of chunks that it divides into.

        Args:
            kind: of the products beside it.
            type_: of the whole value.
            dim: that is cut.
            step: the all-to-all.
        """
        found = self._prices(kind, type_, dim, [self._way(type_, dim, step)])
        counts = counts_of(type_, dim, step.before, self.cache.mesh)
        return {each.count: each for each in found if each.count in counts}

    def _prices(
        self, kind: int, type_: TensorType, dim: int, ways: Sequence[Exchange]
    ) -> tuple[InChunks, ...]:
        """Prices of one run of exchanges, for each number of chunks; infinite where none divides.

        Args:
            kind: of the products beside them.
            type_: of the whole value.
            dim: that is cut.
            ways: the exchanges.
        """
        products, local = self._products(kind, dim), np.array([way.local_bytes for way in ways])
        share, compute = local / max(float(type_.nbytes), 1.0), self.cache.compute
        found: list[InChunks] = []
        for count, chunk_s in zip(COUNTS, np.array([way.chunk_s for way in ways]).T, strict=True):
            divides = np.isfinite(chunk_s)
            sent_s = np.where(divides, chunk_s, 0.0)
            each = in_chunks(count, sent_s, products, local, share, compute)
            found.append(replace(each, slower_s=np.where(divides, each.slower_s, np.inf)))
        return tuple(found)

    def _alone(
        self, kind: int, type_: TensorType, rows: States, columns: States, seconds: Floats
    ) -> Iterator[tuple[int, int, Sent]]:
        """Pairs of options whose cheapest path is one all-to-all to or from a dimension of groups.

        seconds: of the cheapest path between them, in one run.
        """
        groups = {d for beside in self.kinds[kind].beside for d in beside.groups}
        known, most = self.cache.sent, seconds * (1.0 + _SAME)
        ends = by_state(columns)
        for r, before in enumerate(rows):
            key = type_, before
            if key not in known:
                known[key] = [
                    Sent(step, self.cache.reshard.step_s(step, type_)) for step in _moves(before)
                ]
            for sent in known[key]:
                if sent.step.dim in groups or sent.step.to_dim in groups:
                    for c in ends.get(sent.step.after, ()):
                        if sent.alone_s <= most[r, c] < np.inf:
                            yield r, c, sent

    def _way(self, type_: TensorType, dim: int, step: ReshardStep) -> Exchange:
        reshard, mesh = self.cache.reshard, self.cache.mesh
        counts = counts_of(type_, dim, step.before, mesh)
        chunk_s = (
            reshard.step_s(step, chunk_type(type_, dim, count)) if count in counts else np.inf
            for count in COUNTS
        )
        return Exchange(tuple(chunk_s), float(step.before.local_bytes(type_, mesh)))

    def _products(self, kind: int, dim: int) -> ProductChunks:
        key = self.keys[kind], dim
        if key not in self.cache.chunked:
            factors = self.kinds[kind].factors(dim)
            each = [
                least_in_chunks_s(
                    self.facts, self.cache.compute, self.cache.mesh.num_devices, i, factor
                )
                for i, factor in factors
            ]
            self.cache.chunked[key] = ProductChunks(
                sum(alone for alone, _ in each),
                tuple((n, sum(parts[n] for _, parts in each)) for n in COUNTS),
                float(self.kinds[kind].copied_bytes(dim)),
            )
        return self.cache.chunked[key]


def _moves(before: Sharding) -> Iterator[ReshardStep]:
    """All-to-alls from a state: minor axes of one dimension split another one then."""
    for loses, axes in enumerate(before.dims if not before.partial else ()):
        for count in range(len(axes)):
            for gains in range(len(before.dims)):
                if gains != loses:
                    dims, moved = list(before.dims), axes[count:]
                    dims[loses], dims[gains] = axes[:count], (*before.dims[gains], *moved)
                    after = Sharding(tuple(dims))
                    yield ReshardStep("all-to-all", moved, loses, gains, "", before, after)


def exchange_step(
    found: Neighbours, type_: TensorType, before: Sharding, after: Sharding, mesh: Mesh
) -> tuple[int, ReshardStep] | None:
    """The dimension that is cut and the all-to-all between two states; None if there is none."""
    dims = exchanged(found, type_, before, after, mesh)
    if dims is None:
        return None
    dim, loses, gains = dims
    axes = before.dims[loses][len(after.dims[loses]) :]
    return dim, ReshardStep("all-to-all", axes, loses, gains, "", before, after)
