"""Costs of reshards that may run beside compute, divided into what shows and what is hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel import INTERFERENCE

from ...solver.problem import Floats, Work
from .records import MenuCache
from .skeleton import Outline


@dataclass(frozen=True, eq=False)
class Tables:
    """Costs of a pair of nodes: seconds, those that may be hidden, and in which window.

    Records of the same arrays are equal.
    """

    u: int
    v: int
    seconds: Floats
    hidden: Floats | None
    window: int

    @property
    def _key(self) -> tuple[int, ...]:
        return self.u, self.v, id(self.seconds), id(self.hidden), self.window

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tables) and self._key == other._key


def sites_of(outline: Outline, beside_s: Floats | None) -> dict[int, list[tuple[int, float, int]]]:
    """Join -> (window, seconds beside which it may run, number of such sites).

    Args:
        outline: outline of the problem.
        beside_s: seconds of compute beside each passage; None where nothing runs beside compute.
    """
    found: dict[int, list[tuple[int, float, int]]] = {}
    if beside_s is None:
        return found
    sites, window = outline.sites, outline.windows.passage
    rows = np.stack((sites.join, window[sites.passage], beside_s[sites.passage]), axis=1)
    each, counts = np.unique(rows, axis=0, return_counts=True)
    for (join, at, longest_s), count in zip(each.tolist(), counts.tolist(), strict=True):
        found.setdefault(int(join), []).append((int(at), longest_s, count))
    return found


def shown_and_hidden(
    cache: MenuCache, table: Floats, longest_s: float
) -> tuple[Floats, Floats | None]:
    """Seconds of reshards that cost in any case, and those that enough compute hides.

    Of n seconds, h = min(n, i L) run beside L seconds of compute, which they slow down by the
    factor i of interference: n - h + (1 - 1/i) h is paid, h/i is hidden.

    Args:
        cache: cache of the mesh.
        table: seconds of all runs; infinite where there is no way.
        longest_s: L of all runs.
    """
    if longest_s <= 0.0:
        return table, None
    finite = np.isfinite(table)
    most = float(table[finite].max(initial=0.0))
    length = longest_s if longest_s * INTERFERENCE < most else np.inf
    key = ("hidden", id(table), length)
    if key not in cache.edges:
        known = np.where(finite, table, 0.0)
        hidden = np.minimum(known, length * INTERFERENCE) / INTERFERENCE
        cache.edges[key] = hidden
        cache.edges[("shown", id(table), length)] = table - hidden
        cache.edges[("keep", id(table))] = table
    return cache.edges[("shown", id(table), length)], cache.edges[key]


def work_of(outline: Outline, seconds: Sequence[Floats]) -> Iterator[Work]:
    """Compute of each node in each window that its ops are in.

    Args:
        outline: outline of the problem.
        seconds: seconds of compute of each node and option.
    """
    windows, members = outline.windows, outline.members
    places = Counter((node, int(windows.op[i])) for i, node in outline.op_node.items())
    for (node, window), count in sorted(places.items()):
        share = seconds[node]
        if count < members[node]:
            share = share * (count / members[node])
        if share.any():
            yield Work(node, window, share)
