"""Which ops of a layer recompute: levels of growing thrift.

Every subset of a layer's ops is priced; those on the lower hull of extra seconds over bytes saved
are the levels, once for each limit on what a layer needs again at its peak.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.pipeline.published.readers.aceso import HEAD, LAYER, Database

from .cost import FORWARD, SHARED, kept_bytes

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
CAPS = 4


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels of one family, cheapest first; the first recomputes nothing.

    flags: [levels, ops of a layer].
    peaks: bytes a layer needs again at each level.
    """

    flags: Bools
    peaks: Floats


def families(database: Database, table: Floats) -> list[Levels]:
    """Levels for several limits on the peak."""
    flags, extra, saved, peak = _subsets(database, table)
    limits = np.unique(np.quantile(peak[saved > 0], np.linspace(0, 1, CAPS + 1)[1:]))
    found: list[Levels] = []
    for limit in limits:
        able = np.flatnonzero(peak <= limit)
        hull = able[_hull(extra[able], saved[able])]
        found.append(Levels(flags[hull], peak[hull]))
    return found


def _subsets(database: Database, table: Floats) -> tuple[Bools, Floats, Floats, Floats]:
    ops = database.ops[HEAD : HEAD + LAYER]
    kept = kept_bytes(database, table)[HEAD : HEAD + LAYER]
    numbers = np.arange(1 << LAYER)
    flags = (numbers[:, None] >> np.arange(LAYER)) & 1 == 1
    # The last op of a layer may recompute with the first of the next, which saves nothing more.
    extra = flags @ table[FORWARD, HEAD : HEAD + LAYER]
    saved = np.zeros(len(numbers))
    run = np.zeros(len(numbers))
    peak = np.zeros(len(numbers))
    for i in range(LAYER - 1):
        both = flags[:, i] & flags[:, i + 1]
        saved += np.where(both, kept[i], 0.0)
        run = np.where(both, run + kept[i], 0.0)
        peak = np.maximum(peak, run)
    assert ops[0] not in SHARED
    return flags, extra, saved, peak


def _hull(extra: Floats, saved: Floats) -> npt.NDArray[np.int64]:
    """Points of the lower hull of `extra` over `saved`, from nothing saved to most."""
    order = np.lexsort((extra, saved))
    kept: list[int] = []
    for at in order.tolist():
        if kept and saved[at] == saved[kept[-1]]:
            continue
        while len(kept) > 1 and _above(extra, saved, kept[-2], kept[-1], at):
            kept.pop()
        kept.append(at)
    while len(kept) > 1 and extra[kept[-1]] < extra[kept[-2]]:
        kept.pop()
    return np.array(kept, dtype=np.int64)


def _above(extra: Floats, saved: Floats, a: int, b: int, c: int) -> bool:
    """Whether b lies on or above the line from a to c."""
    left = (extra[b] - extra[a]) * (saved[c] - saved[a])
    return bool(left >= (extra[c] - extra[a]) * (saved[b] - saved[a]))
