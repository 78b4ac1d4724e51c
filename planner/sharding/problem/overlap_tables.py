"""Costs of reshards that may run beside compute, divided into what shows and what is hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from costmodel import INTERFERENCE

from ...solver.problem import Floats, Hidden, Work
from .skeleton import Outline


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


def longest_hidden_s(table: Floats, longest_s: float) -> float:
    """Seconds L beside which reshards may run; infinite if none of them is longer.

    Args:
        table: seconds of all runs; infinite where there is no way.
        longest_s: L of all runs.
    """
    most = float(np.where(np.isfinite(table), table, 0.0).max(initial=0.0))
    return longest_s if longest_s * INTERFERENCE < most else np.inf


def hidden_beside(window: int, longest_s: float) -> Hidden:
    """Hidden seconds of an edge, by those that cost in any case.

    Of n seconds, h = min(n, i L) run beside L seconds of compute, which they slow down by the
    factor i of interference: n - h/i is paid, h/i is hidden. With h = n that is 1/(i - 1) times
    what is paid.

    Args:
        window: window of the edge.
        longest_s: L of all runs.
    """
    return Hidden(window, 1.0 / (INTERFERENCE - 1.0), longest_s)


def shown(table: Floats, longest_s: float) -> Floats:
    """Seconds of reshards that cost in any case: n - h/i; see `hidden_beside`.

    Args:
        table: n, seconds of all runs; infinite where there is no way.
        longest_s: L of all runs.
    """
    if longest_s <= 0.0:
        return table
    finite = np.where(np.isfinite(table), table, 0.0)
    return table - np.minimum(finite / INTERFERENCE, longest_s)


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
