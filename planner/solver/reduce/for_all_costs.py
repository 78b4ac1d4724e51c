"""Reductions that hold whatever the costs are, and the one map that they are.

Leaving out what is forbidden and merging followers depend on which options and pairs are finite
only: so they hold for a problem with windows at all multipliers, see `windows.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Flat, Ints, ranges
from .arc_consistency import consistent
from .reduce import Reduced
from .remap import NONE, Remap


@dataclass(frozen=True, slots=True, eq=False)
class ForAllCosts:
    """A problem reduced for all costs.

    flat: what is left.
    map: how the nodes of the problem follow those left.
    first: where the options of each node of the problem begin.
    """

    flat: Flat
    map: Remap
    first: Ints

    def options(self, held: np.ndarray) -> np.ndarray:
        """Mask of the options of the problem that follow those held of what is left."""
        counts, sizes = self.map.counts, self.map.sizes
        place = np.append(np.cumsum(sizes) - sizes, len(held))
        taken = np.append(held, True)[ranges(place[self.map.follows], counts)]
        cells = np.repeat(self.first[:-1], counts) + self.map.option[ranges(self.map.at, counts)]
        found = np.zeros(int(self.first[-1]), dtype=np.bool_)
        found[cells[taken]] = True
        return found


def reduced_for_all_costs(flat: Flat, held: np.ndarray | None = None) -> ForAllCosts | None:
    """The problem without what is forbidden and without followers; None if there is no choice.

    Args:
        flat: the problem.
        held: options to consider, all if None.
    """
    state = Reduced(flat)
    if held is None or not state.keep(held):
        state.tidy()
    if not state.broken:
        state.keep(consistent(state.flat))
    while not state.broken and state.merge_followers():
        state.keep(consistent(state.flat))
    if state.broken:
        return None
    maps = [step for step in state.steps if isinstance(step, Remap)]
    whole = maps[0]
    for step in maps[1:]:
        whole = _after(whole, step)
    return ForAllCosts(state.flat, whole, flat.first)


def _after(one: Remap, two: Remap) -> Remap:
    """The map that reads through `one`, then through `two`."""
    follows = np.append(two.follows, NONE)[one.follows]
    counts = np.append(two.counts, 1)[one.follows]
    inner = np.append(two.option, 0)
    begin = np.append(two.at, len(two.option))[one.follows]
    option = one.option[np.repeat(one.at, counts) + inner[ranges(begin, counts)]]
    return Remap(follows, np.cumsum(counts) - counts, option, two.sizes)
