"""Rows of a table that devices exchange: lookups of rows that others hold, rows added to theirs.

Each of n devices holds T / n rows of a table and M / n of its lookups. Numbers of rows go to the
holders, rows back (or both to the holders, where rows are added), in rounds of M / n rows that a
holder can send or receive. Where every row of the table is looked up equally often, as by any
order of k copies of each token, that is one round:

    t = all-gather(n^2 counts) + all-to-all(numbers) + all-to-all(rows) + local copies

all-to-alls of exactly the M / n rows of a device. Rows that are looked up more often than others
take as many more rounds as the busiest holder has times its share; the price has none of these.
Blocks of a table with lookups of their own go in the same exchange.

Emission: `planner.emit.exchanged_rows`.

Source: the dispatch and combination of Lepikhin et al., GShard, arXiv:2006.16668, without capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ir import EXCHANGE, Node, TensorType
from profiles import CollectiveKind

from .attention_blocks import Exchange, Hops
from .collectives import wire_fraction
from .compute import ComputeModel, item_bytes

Floats = NDArray[np.float64]

_WORD: Final = 4.0  # bytes of a number of a row
# Kernels beside the lookup, counted in the text of the GPU compiler (tests/planner/emit/):
# a sort, counts, sizes and places, and copies before and after.
KERNELS: Final = 12


@final
class RowExchange:
    """Lookups of rows, or rows added, on one device under each of some strategies.

    Args:
        node: one of `ir.EXCHANGED`.
        operands: types of its whole operands.
        ways: for every factor the number of parts, one entry per strategy.
    """

    def __init__(
        self, node: Node, operands: tuple[TensorType, ...], ways: Mapping[str, Floats]
    ) -> None:
        table, indices, *added = operands
        rows = added[0] if added else node.outputs[0]
        self.n = np.asarray(ways.get(EXCHANGE, 1.0), dtype=np.float64)
        lead = indices.rank - 1  # dimensions before those of a row, of blocks among them
        wide = math.prod(table.shape[lead:]) * item_bytes(table.dtype)
        width: Floats = np.full(self.n.shape, wide)
        for d in range(lead, table.rank):
            width = width / np.asarray(ways.get(f"w{d}", 1.0), dtype=np.float64)
        self.exchanges = self.n > 1.0
        count = math.prod(rows.shape[:lead]) / self.n
        for name in ("i0", "b0") if lead > 1 else ():  # blocks, of lookups and of additions
            count = count / np.asarray(ways.get(name, 1.0), dtype=np.float64)
        self.numbers = count * _WORD
        self.rows = count * width

    def seconds(self, compute: ComputeModel) -> Floats:
        """Seconds of compute beside a lookup of as many rows on one device."""
        length = np.maximum(self.numbers / _WORD, 2.0)
        sorted_s = compute.memory_s(2.0 * self.numbers * np.log2(length))
        copied = compute.memory_s(4.0 * self.rows + 8.0 * self.numbers)
        return np.where(self.exchanges, sorted_s + copied + KERNELS * compute.launch_s, 0.0)

    def exchange(self, hops: Hops) -> tuple[tuple[CollectiveKind, Exchange], ...]:
        """Collectives of one run, by kind."""
        counts = self.n * self.n * _WORD
        return (
            ("all-gather", self._of("all-gather", hops, counts)),
            ("all-to-all", self._of("all-to-all", hops, self.numbers)),
            ("all-to-all", self._of("all-to-all", hops, self.rows)),
        )

    def exposed_s(self, hops: Hops) -> Floats:
        """Seconds of all collectives of one run, beside which nothing of the op is computed."""
        return sum((each.seconds for _, each in self.exchange(hops)), np.zeros_like(self.n))

    def held_bytes(self) -> Floats:
        """Bytes of rows on their way and of numbers, beside operands and results."""
        return np.where(self.exchanges, 2.0 * self.rows + 4.0 * self.numbers, 0.0)

    def _of(self, kind: CollectiveKind, hops: Hops, full: Floats) -> Exchange:
        full = np.where(self.exchanges, full, 0.0)
        share = np.array([wire_fraction(kind, int(n)) for n in self.n.ravel()])
        seconds = hops.seconds(full, (kind,))
        return Exchange(
            self.exchanges.astype(np.float64), full * share.reshape(self.n.shape), seconds, seconds
        )
