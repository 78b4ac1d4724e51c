"""Seconds of reshards between the options of two nodes, computed where they are read.

Of n seconds at a site, h = min(n, i L) run beside L seconds of compute, which they slow down by
the factor i of interference: n - h/i is paid, h/i is hidden where the window has as much compute.
Both are sums over sites of functions of n that never fall, so that the least of a class of pairs
is that of its least n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np

from costmodel import INTERFERENCE

from ...solver.problem import Floats
from ...solver.tables import Deferred, Ints, least_gathered, split_gathered

# Sites by the seconds L of compute beside which a reshard may run there: (L, number of sites). Of a
# site at which only some rounds of a loop have compute beside them, each part counts by its share.
Lengths = tuple[tuple[float, float], ...]
_Least = dict[tuple[int, int], tuple[Ints, Ints, "Reshards"]]


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Seconds of all runs of a reshard: of `matrix` at the states of the options of two nodes.

    least: those of pairs of classes, by the ids of the classes.
    """

    matrix: Floats
    weight: float
    rows: Ints
    columns: Ints
    least: _Least = field(default_factory=_Least)


@final
class Reshards:
    """Seconds of all runs of a reshard by the options of two nodes.

    Args:
        matrix: seconds of one run between all states.
        weight: number of runs.
        rows: state of each option of the first node; -1 where the value cannot have it.
        columns: likewise of the second.

    otherwise: paid and hidden seconds at sites where some of them run in parts or in chunks.
    """

    def __init__(self, matrix: Floats, weight: float, rows: Ints, columns: Ints) -> None:
        self.runs = _Runs(matrix, weight, rows, columns)
        self.shape = len(rows), len(columns)
        self._at: dict[Lengths, tuple[AtSites, AtSites]] = {}
        self.otherwise: dict[object, tuple[Floats, Floats]] = {}

    @classmethod
    def of(cls, table: Floats) -> Reshards:
        """Those of a table."""
        rows, columns = [np.arange(size, dtype=np.int64) for size in table.shape]
        return cls(table, 1.0, rows, columns)

    @property
    def table(self) -> Floats:
        """Seconds by the options, infinite where there is no way; a new array."""
        return self.times(1.0).part()

    @cached_property
    def most(self) -> float:
        """The largest seconds, those left out where there is no way."""
        return self._range[0]

    @cached_property
    def is_free(self) -> bool:
        """Whether there is a way between all options that takes no time."""
        return self._range[1]

    @cached_property
    def _range(self) -> tuple[float, bool]:
        table = self.table
        return float(table.max(initial=0.0, where=np.isfinite(table))), not table.any()

    def times(self, count: float) -> AtSites:
        """Seconds at so many sites, where nothing runs beside compute."""
        return self.at(((0.0, count),))[0]

    def at(self, lengths: Lengths) -> tuple[AtSites, AtSites]:
        """The paid and the hidden seconds at several sites, the same objects each time."""
        if lengths not in self._at:
            paid = AtSites(self.runs, lengths, hidden=False)
            self._at[lengths] = paid, AtSites(self.runs, lengths, hidden=True)
        return self._at[lengths]


@final
class AtSites(Deferred):
    """The paid or the hidden seconds of reshards at several sites of a window.

    Args:
        runs: of the reshards.
        lengths: seconds of compute beside each and number of such sites, of all runs.
        hidden: which of the two; hidden ones are 0 where there is no way.
    """

    def __init__(self, runs: _Runs, lengths: Lengths, *, hidden: bool) -> None:
        super().__init__((len(runs.rows), len(runs.columns)))
        self.runs, self.lengths, self.hidden = runs, lengths, hidden
        each = np.array(lengths, dtype=np.float64).reshape(-1, 2)
        self.sites = INTERFERENCE * each[:, 0], each[:, 1].copy()

    def part(self, rows: Ints | None = None, columns: Ints | None = None) -> Floats:
        mine = self.runs
        at = (
            mine.rows if rows is None else mine.rows[rows],
            mine.columns if columns is None else mine.columns[columns],
        )
        out = np.empty((len(at[0]), len(at[1])))
        split_gathered(mine.matrix, mine.weight, at, self.sites, INTERFERENCE, self.hidden, out)
        return out

    def least(self, rows: Ints, columns: Ints, shape: Sequence[int]) -> Floats:
        mine, key = self.runs, (id(rows), id(columns))
        if key not in mine.least:
            found, at = np.full(shape, np.inf), (mine.rows, mine.columns)
            least_gathered(mine.matrix, mine.weight, at, (rows, columns), found)
            mine.least[key] = rows, columns, Reshards.of(found)  # keeps their ids unique
        return mine.least[key][2].at(self.lengths)[self.hidden].part()
