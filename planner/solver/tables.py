"""Tables of pairs of options: arrays, or computed where they are read.

Of a wide problem, which is solved by classes of options, only the least of each pair of classes
and the entries of a few options are ever read. Its tables are not written down then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .numba_jit import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Deferred(ABC):
    """A table whose entries are computed where they are read.

    Args:
        shape: numbers of options of the two nodes.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self._read: dict[tuple[int, int], float] = {}

    @cached_property
    def lowest(self) -> float:
        """The least entry; infinite where there is none."""
        return float(self.part().min(initial=np.inf))

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @abstractmethod
    def part(self, rows: Ints | None = None, columns: Ints | None = None) -> Floats:
        """Some rows and columns as a new array; None: all."""

    def item(self, row: int, column: int) -> float:
        """One entry; remembered, since choices that are compared have most pairs in common."""
        found = self._read.get((row, column))
        if found is None:
            at = np.array([row], dtype=np.int64), np.array([column], dtype=np.int64)
            found = self._read[row, column] = self.part(*at).item()
        return found

    def least(self, rows: Ints, columns: Ints, shape: Sequence[int]) -> Floats:
        """Least entry of each pair of classes.

        Args:
            rows: class of each row.
            columns: class of each column.
            shape: numbers of classes.
        """
        found = np.full(shape, np.inf)
        least_of_classes(self.part(), rows, columns, found)
        return found


Table: TypeAlias = Floats | Deferred


def whole(table: Table) -> Floats:
    """A table as an array."""
    return table.part() if isinstance(table, Deferred) else table


def lowest(table: Table) -> float:
    """The least entry; infinite where there is none."""
    if isinstance(table, Deferred):
        return table.lowest
    return float(table.min(initial=np.inf))


def some(table: Table, *options: Ints | None) -> Floats:
    """Some options of each dimension; None: all. An array of which all is asked for is itself."""
    if isinstance(table, Deferred):
        return table.part(*options)
    for axis, kept in enumerate(options):
        table = table if kept is None else table.take(kept, axis=axis)
    return table


class Turned(Deferred):
    """A table with its rows as columns."""

    def __init__(self, table: Deferred) -> None:
        super().__init__((table.shape[1], table.shape[0]))
        self.table = table

    def part(self, rows: Ints | None = None, columns: Ints | None = None) -> Floats:
        return np.ascontiguousarray(self.table.part(columns, rows).T)


class Mixed(Deferred):
    """A table and a share of another."""

    def __init__(self, table: Deferred, share: float, other: Deferred) -> None:
        super().__init__(table.shape)
        self.table, self.share, self.other = table, share, other

    def part(self, rows: Ints | None = None, columns: Ints | None = None) -> Floats:
        found = self.other.part(rows, columns)
        found *= self.share
        found += self.table.part(rows, columns)
        return found


@compiled
def least_of_classes(table: Floats, rows: Ints, columns: Ints, out: Floats) -> None:
    """out[a, b] = least of itself and of table[i, j], i of the class a and j of b."""
    for i in range(table.shape[0]):
        least = out[rows[i]]
        for j in range(table.shape[1]):
            if table[i, j] < least[columns[j]]:
                least[columns[j]] = table[i, j]


@compiled
def least_gathered(
    matrix: Floats, times: float, at: tuple[Ints, Ints], classes: tuple[Ints, Ints], out: Floats
) -> None:
    """out[a, b] = least of itself and of times * matrix[at[0][i], at[1][j]], as above.

    Negative places stand for entries that are infinite.
    """
    rows, columns = at
    for i in range(len(rows)):
        if rows[i] < 0:
            continue
        row, least = matrix[rows[i]], out[classes[0][i]]
        for j in range(len(columns)):
            if columns[j] >= 0 and row[columns[j]] < np.inf:
                seconds = times * row[columns[j]]
                if seconds < least[classes[1][j]]:
                    least[classes[1][j]] = seconds


@compiled
def split_gathered(
    matrix: Floats, times: float, at: tuple[Ints, Ints], sites: tuple[Floats, Floats],
    slower: float, hidden: bool, out: Floats,
) -> None:  # fmt: skip
    """out[i, j] = what of n = times * matrix[at[0][i], at[1][j]] is hidden at sites, or what not.

    At sites[1][k] sites min(n, sites[0][k]) / slower is hidden; nothing of an infinite n. Negative
    places stand for entries that are infinite.
    """
    rows, columns = at
    most, counts = sites
    total = 0.0
    for k in range(len(counts)):
        total += counts[k]
    for i in range(len(rows)):
        for j in range(len(columns)):
            seconds = np.inf
            if rows[i] >= 0 and columns[j] >= 0:
                seconds = matrix[rows[i], columns[j]]
            if seconds == np.inf:
                out[i, j] = 0.0 if hidden else np.inf
                continue
            seconds *= times
            beside = 0.0
            for k in range(len(most)):
                beside += min(seconds, most[k]) * counts[k]
            beside /= slower
            out[i, j] = beside if hidden else seconds * total - beside
