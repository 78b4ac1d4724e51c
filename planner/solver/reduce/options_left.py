"""A problem with some of its options, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Ints
from ..problem import Floats, IntraProblem
from ..tables import Table, some


@dataclass(frozen=True, slots=True, eq=False)
class OptionsLeft:
    """kept: options of each node, in order."""

    problem: IntraProblem
    kept: tuple[Ints, ...]

    def lift(self, choice: Sequence[int]) -> tuple[int, ...]:
        """A choice of the whole problem."""
        return tuple(int(k[c]) for k, c in zip(self.kept, choice, strict=True))

    def lowered(self, choice: Sequence[int]) -> tuple[int, ...]:
        """A choice of the whole problem as one of what is left; empty if it is not there."""
        if not choice:
            return ()
        found = [int(np.searchsorted(k, c)) for k, c in zip(self.kept, choice, strict=True)]
        pairs = zip(self.kept, found, choice, strict=True)
        return tuple(found) if all(n < len(k) and k[n] == c for k, n, c in pairs) else ()


def options_left(problem: IntraProblem, held: np.ndarray) -> OptionsLeft:
    """The problem with the options of a mask, at least one of each node; equal arrays stay one."""
    first = np.cumsum([0, *map(len, problem.node_cost)])
    known: dict[bytes, Ints] = {}
    kept: list[Ints] = []
    for a, b in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
        options = np.flatnonzero(held[a:b])
        kept.append(known.setdefault(options.tobytes(), options))
    made: dict[tuple[int, ...], Floats] = {}

    def part(array: Table, *nodes: int) -> Floats:
        key = (id(array), *(id(kept[v]) for v in nodes))
        if key not in made:
            made[key] = some(array, *[kept[v] for v in nodes])
        return made[key]

    return OptionsLeft(problem.with_arrays(part), tuple(kept))
