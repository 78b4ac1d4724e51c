"""Costs of reshards that may run beside compute, divided into what shows and what is hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel import INTERFERENCE, InChunks

from ...solver.problem import Floats, Work
from ...solver.tables import Table
from .reshard_seconds import Lengths, Reshards
from .skeleton import Outline
from .windows import BESIDE


def sites_of(
    outline: Outline, beside_s: Floats | None, kinds: NDArray[np.intp] | None
) -> dict[int, list[tuple[int, int, float, float]]]:
    """Join -> (window, kind, seconds beside which it may run, number of such sites).

    Args:
        outline: outline of the problem.
        beside_s: seconds of compute beside each passage; None where nothing runs beside compute.
        kinds: kind of products beside each passage, -1 where there are none; None if nothing runs
            in chunks.
    """
    found: dict[int, list[tuple[int, int, float, float]]] = {}
    if beside_s is None:
        return found
    sites, windows = outline.sites, outline.windows
    at = windows.passage[sites.passage], beside_s[sites.passage], windows.rounds[sites.passage]
    kind = np.full(len(sites.join), -1) if kinds is None else kinds[sites.passage]
    rows = np.stack((sites.join, *at, kind), axis=1)
    each, counts = np.unique(rows, axis=0, return_counts=True)
    for (join, window, longest_s, share, kind_), count in zip(
        each.tolist(), counts.tolist(), strict=True
    ):
        here, which = found.setdefault(int(join), []), (int(window), int(kind_))
        here.append((*which, longest_s, count * share if share < 1.0 else count))
        if share < 1.0:
            here.append((*which, 0.0, count * (1.0 - share)))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class PartsTable:
    """Products in parts by the options of a join's two nodes, all runs together.

    added_s: seconds beside the product; infinite where it does not run in parts.
    hidden_s: seconds of its permutes that compute hides.
    """

    added_s: Floats
    hidden_s: Floats

    def less(self, pair: tuple[int, int], seconds: float, beside_s: float) -> bool:
        """Whether it is in parts at a site: if that adds less than a reshard that hides all it may.

        Args:
            pair: options of the two nodes.
            seconds: of the reshard, of all runs.
            beside_s: seconds of compute beside it, of all runs.
        """
        hidden = min(seconds, INTERFERENCE * beside_s) / INTERFERENCE
        return float(self.added_s[pair]) < seconds - hidden

    def at(self, lengths: Lengths, table: Floats) -> tuple[Floats, Floats]:
        """Paid and hidden seconds of a reshard at several sites, in parts where that is less.

        Args:
            lengths: seconds of compute beside it and number of such sites, of all runs.
            table: seconds of the reshard, of all runs; infinite where there is no way.
        """
        paid, hidden = np.zeros(table.shape), np.zeros(table.shape)
        finite = np.where(np.isfinite(table), table, 0.0)
        for longest_s, times in lengths:
            behind = np.minimum(finite, INTERFERENCE * longest_s) / INTERFERENCE
            less = self.added_s < table - behind
            paid += times * np.where(less, self.added_s, finite - behind)
            hidden += times * np.where(less, self.hidden_s, behind)
        return np.where(np.isfinite(table) | np.isfinite(self.added_s), paid, np.inf), hidden


@dataclass(frozen=True, slots=True, eq=False)
class ChunksTable:
    """Exchanges in chunks by the options of a join's two nodes, all runs together.

    rows, columns: options of the pairs between which there is one.
    prices: by number of chunks, one entry per pair; infinite where it does not divide.
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    prices: tuple[InChunks, ...]

    def best(self, seconds: Floats, beside_s: float) -> tuple[NDArray[np.intp], Floats, Floats]:
        """Number of chunks of each pair, paid and hidden seconds; 1 as a whole if not dearer.

        Args:
            seconds: of the exchanges as a whole.
            beside_s: seconds of other compute beside one.
        """
        finite = np.where(np.isfinite(seconds), seconds, 0.0)
        hidden = np.minimum(finite, INTERFERENCE * beside_s) / INTERFERENCE
        count, paid = np.ones(len(seconds), dtype=np.intp), seconds - hidden
        for each in self.prices:
            added = each.added_s(beside_s)
            less = added < paid
            count = np.where(less, each.count, count)
            paid = np.where(less, added, paid)
            hidden = np.where(less, each.hidden_s(beside_s), hidden)
        return count, paid, hidden

    def count(self, pair: tuple[int, int], seconds: float, beside_s: float) -> int:
        """In how many chunks an exchange runs at a site.

        Args:
            pair: options of the two nodes.
            seconds: of the exchange as a whole.
            beside_s: seconds of other compute beside it.
        """
        at = np.flatnonzero((self.rows == pair[0]) & (self.columns == pair[1]))
        if not len(at):
            return 1
        counts, _, _ = self.best(np.full(len(self.rows), seconds), beside_s)
        return int(counts[at[0]])

    def at(
        self, lengths: Lengths, table: Floats, whole: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats]:
        """Paid and hidden seconds at several sites, in chunks where that is less.

        Args:
            lengths: seconds of compute beside it and number of such sites, of all runs.
            table: seconds of the reshard, of all runs; infinite where there is no way.
            whole: paid and hidden seconds of the reshards as a whole.
        """
        where = self.rows, self.columns
        paid, hidden = whole[0].copy(), whole[1].copy()
        paid[where] = hidden[where] = 0.0
        for longest_s, times in lengths:
            _, more, less = self.best(table[where], longest_s)
            paid[where] += times * more
            hidden[where] += times * less
        return paid, hidden


def split_once(
    reshards: Reshards, lengths: Lengths, parts: PartsTable | None, chunks: ChunksTable | None
) -> tuple[Table, Table]:
    """The paid and the hidden seconds of reshards at several sites; one object for equal arguments.

    Args:
        reshards: the reshards.
        lengths: seconds of compute beside them and number of such sites, of all runs.
        parts: what may run in parts.
        chunks: what may run in chunks.
    """
    if parts is None and chunks is None:
        return reshards.at(lengths)
    key = lengths, parts, chunks
    if key not in reshards.otherwise:
        table, whole = reshards.table, reshards.at(lengths)
        split = (whole[0].part(), whole[1].part()) if parts is None else parts.at(lengths, table)
        reshards.otherwise[key] = split if chunks is None else chunks.at(lengths, table, split)
    return reshards.otherwise[key]


def lengths_of(most: float, sites: Iterable[tuple[float, float]]) -> Lengths:
    """Sites of a reshard by length, the shortest first; lengths that none exceeds are infinite.

    Args:
        most: the largest seconds of all runs.
        sites: (L of all runs, number of such sites).
    """
    found: dict[float, float] = {}
    for longest_s, times in sites:
        length = longest_s if longest_s * INTERFERENCE < most else np.inf
        found[length] = found.get(length, 0) + times
    return tuple(sorted(found.items()))


def work_of(outline: Outline, seconds: Sequence[Floats]) -> Iterator[Work]:
    """Compute of each node in each window beside which collectives may run.

    Args:
        outline: outline of the problem.
        seconds: seconds of compute of each node and option.
    """
    windows, members = outline.windows, outline.members
    places = Counter((node, int(windows.op[i])) for i, node in outline.op_node.items())
    for (node, window), count in sorted(places.items()):
        share = BESIDE * seconds[node]
        if count < members[node]:
            share = share * (count / members[node])
        if share.any():
            yield Work(node, window, share)
