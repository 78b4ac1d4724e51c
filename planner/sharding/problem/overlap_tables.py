"""Costs of reshards that may run beside compute, divided into what shows and what is hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel import INTERFERENCE

from ...solver.problem import Floats, Work
from .skeleton import Outline

# Sites by the seconds L of compute beside which a reshard may run there: (L, number of sites). Of a
# site at which only some rounds of a loop have compute beside them, each part counts by its share.
Lengths = tuple[tuple[float, float], ...]


def sites_of(
    outline: Outline, beside_s: Floats | None
) -> dict[int, list[tuple[int, float, float]]]:
    """Join -> (window, seconds beside which it may run, number of such sites).

    Args:
        outline: outline of the problem.
        beside_s: seconds of compute beside each passage; None where nothing runs beside compute.
    """
    found: dict[int, list[tuple[int, float, float]]] = {}
    if beside_s is None:
        return found
    sites, windows = outline.sites, outline.windows
    at = windows.passage[sites.passage], beside_s[sites.passage], windows.rounds[sites.passage]
    rows = np.stack((sites.join, *at), axis=1)
    each, counts = np.unique(rows, axis=0, return_counts=True)
    for (join, window, longest_s, share), count in zip(each.tolist(), counts.tolist(), strict=True):
        here = found.setdefault(int(join), [])
        here.append((int(window), longest_s, count * share if share < 1.0 else count))
        if share < 1.0:
            here.append((int(window), 0.0, count * (1.0 - share)))
    return found


def split_table(table: Floats, lengths: Lengths) -> tuple[Floats, Floats]:
    """Seconds of a reshard at several sites of a window: those paid in any case, and the hidden.

    Of n seconds at a site, h = min(n, i L) run beside L seconds of compute, which they slow down
    by the factor i of interference: n - h/i is paid, h/i is hidden where the window has as much
    compute. Summed over sites, h is a piecewise linear function of n.

    Args:
        table: n, seconds of all runs; infinite where there is no way.
        lengths: of all runs, the shortest first.
    """
    finite = np.where(np.isfinite(table), table, 0.0)
    most, times = float(finite.max()), np.array([0, *(count for _, count in lengths)])
    # h grows with n at all sites up to the first of the knots, and at fewer from each to the next
    knots = np.array([0.0, *(min(INTERFERENCE * longest_s, most) for longest_s, _ in lengths)])
    growing = times.sum() - np.cumsum(times)[:-1]
    heights = np.concatenate(([0.0], np.cumsum(growing * np.diff(knots))))
    hidden = np.interp(finite, knots, heights) / INTERFERENCE
    return table * times.sum() - hidden, hidden


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
        for longest_s, times in lengths:
            behind = np.minimum(np.where(np.isfinite(table), table, 0.0), INTERFERENCE * longest_s)
            behind = behind / INTERFERENCE
            less = self.added_s < table - behind
            paid += times * np.where(less, self.added_s, table - behind)
            hidden += times * np.where(less, self.hidden_s, behind)
        return paid, hidden


def split_once(
    known: dict[object, Floats], table: Floats, lengths: Lengths, parts: PartsTable | None
) -> tuple[Floats, Floats]:
    """The paid and the hidden seconds of a table; one object for equal arguments."""
    key = id(table), lengths, parts
    if ("paid", *key) not in known:
        split = split_table(table, lengths) if parts is None else parts.at(lengths, table)
        known["paid", *key], known["hidden", *key] = split
        known["keep", id(table)] = table
    return known["paid", *key], known["hidden", *key]


def most_finite(table: Floats) -> float:
    """The largest of the seconds of a reshard, those left out where there is no way."""
    return float(table.max(initial=0.0, where=np.isfinite(table)))


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
