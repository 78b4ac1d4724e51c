"""Prices of exchanges in chunks, at the joins where a value is exchanged beside products.

Whether an exchange runs in chunks is no option of a node: the cost of a pair of states is the
smaller one, of the exchange as a whole and in 2, 4 or 8 chunks. The products beside it count with
their least seconds, as everything does that a collective may run beside (`windows.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

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
    exchanged,
)
from ir.analysis import operand_types

from ...solver.problem import Floats
from ..cost.least_seconds import least_in_chunks_s
from .overlap_tables import ChunksTable
from .records import MenuCache, States
from .reshard_tables import edge_table
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
        if kind < 0:
            return None
        cache = self.cache
        key = self.keys[kind], type_, id(rows), id(columns), weight
        if key not in cache.chunks:
            seconds = edge_table(cache, rows, columns, type_, weight)
            cache.chunks[key] = self._made(kind, type_, rows, columns, weight, seconds)
            cache.columns[("keep", id(rows))] = rows
            cache.columns[("keep", id(columns))] = columns
        return cache.chunks[key]

    def _made(
        self, kind: int, type_: TensorType, rows: States, columns: States, weight: float,
        seconds: Floats,
    ) -> ChunksTable | None:  # fmt: skip
        reshard = self.cache.reshard
        pairs = _exchanges(self.kinds[kind], type_, rows, columns, self.cache.mesh, seconds)
        kept = [
            (r, c, dim, step) for r, c, dim, step in pairs
            if reshard.step_s(step, type_) * weight <= seconds[r, c] * (1.0 + _SAME)
        ]  # fmt: skip
        each = [self.prices(kind, type_, dim, step) for _, _, dim, step in kept]
        some = [n for n, counts in enumerate(each) if counts]
        if not some:
            return None
        where = [(kept[n][0], kept[n][1]) for n in some]
        prices = tuple(
            InChunks(
                count,
                *(
                    np.array([getattr(_of(each[n], count), name)[0] for n in some]) * weight
                    for name in ("chunk_s", "part_s", "slower_s")
                ),
            )
            for count in COUNTS
        )
        r, c = np.array(where, dtype=np.intp).T
        return ChunksTable(r, c, prices)

    def prices(
        self, kind: int, type_: TensorType, dim: int, step: ReshardStep
    ) -> dict[int, InChunks]:
        """Prices of one run of an exchange, by the number of chunks.

        Args:
            kind: of the products beside it.
            type_: of the whole value.
            dim: that is cut.
            step: the all-to-all.
        """
        reshard, compute, mesh = self.cache.reshard, self.cache.compute, self.cache.mesh
        products = self._products(kind, dim)
        local = float(step.before.local_bytes(type_, mesh))
        share = local / max(float(type_.nbytes), 1.0)
        return {
            count: in_chunks(
                count,
                np.array([reshard.step_s(step, chunk_type(type_, dim, count))]),
                products, local, share, compute,
            )
            for count in counts_of(type_, dim, step.before, mesh)
        }  # fmt: skip

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


def _of(found: dict[int, InChunks], count: int) -> InChunks:
    """The price of some chunks, infinite where what is cut does not divide."""
    nothing = np.zeros(1)
    return found.get(count) or InChunks(count, nothing, nothing, np.full(1, np.inf))


def _exchanges(
    found: Neighbours, type_: TensorType, rows: States, columns: States, mesh: Mesh, seconds: Floats
) -> Iterator[tuple[int, int, int, ReshardStep]]:
    """Pairs of states between which there is an exchange, its cut dimension and its step."""
    groups = {d for beside in found.beside for d in beside.groups}
    by_axes: dict[frozenset[str], list[int]] = {}
    for c, state in enumerate(columns):
        if not state.partial and state.axes:
            by_axes.setdefault(frozenset(state.axes), []).append(c)
    known: dict[tuple[Sharding, Sharding], tuple[int, ReshardStep] | None] = {}
    for r, before in enumerate(rows):
        if before.partial:
            continue
        for c in by_axes.get(frozenset(before.axes), ()):
            after = columns[c]
            if all(before.dims[d] == after.dims[d] for d in groups):
                continue
            if not np.isfinite(seconds[r, c]):
                continue
            if (before, after) not in known:
                known[before, after] = exchange_step(found, type_, before, after, mesh)
            step = known[before, after]
            if step is not None:
                yield r, c, *step


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
