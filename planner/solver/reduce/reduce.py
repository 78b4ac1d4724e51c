"""All reductions, again and again, until nothing changes much; and the way back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..arrays import Flat, Ints
from .arc_consistency import consistent
from .dominance import undominated
from .followers import followers
from .node_elimination import eliminate_series
from .remap import keeping, remap

ROUNDS = 12
# Rounds end when one takes away less than this share of the options and pairs; of many, each round
# takes as long as many steps of prices.
SETTLED, SETTLED_MANY, MANY = 0.01, 0.04, 1_000_000


class Step(Protocol):
    """A reduction that was made."""

    def lift(self, choice: Ints) -> Ints:
        """The choice of the problem before, at the same cost."""
        ...

    def project(self, choice: Ints) -> Ints:
        """The choice that is most like one of the problem before; it may cost more."""
        ...


@dataclass(slots=True, eq=False)
class Reduced:
    """A problem and the steps that led to it.

    broken: set when there is no choice; (moment, nodes) that conflict are looked up by `conflict`.
    """

    flat: Flat
    steps: list[Step] = field(default_factory=list[Step])
    broken: bool = False

    def lift(self, choice: Ints) -> Ints:
        """A choice of the first problem."""
        for step in reversed(self.steps):
            choice = step.lift(choice)
        return choice

    def project(self, choice: Ints) -> Ints:
        """The choice that is most like one of the first problem."""
        for step in self.steps:
            choice = step.project(choice)
        return choice

    def keep(self, held: np.ndarray) -> bool:
        """Leaves out options; whether any were."""
        if held.all():
            return False
        sizes = np.diff(self.flat.first)
        node = np.repeat(np.arange(self.flat.size), sizes)
        if (np.bincount(node[held], minlength=self.flat.size) == 0).any():
            self.broken = True
            return False
        step = keeping(self.flat, held)
        self.take(remap(self.flat, step), step)
        return True

    def take(self, flat: Flat, step: Step) -> None:
        """Goes on with another problem and the step that led to it."""
        self.flat = flat
        self.steps.append(step)
        self.broken |= bool((flat.limit < 0.0).any()) or not np.isfinite(flat.constant)

    def merge_followers(self) -> bool:
        """Whether any node was merged."""
        step = followers(self.flat)
        if step is not None:
            self.take(remap(self.flat, step), step)
        return step is not None

    def eliminate(self) -> bool:
        """Whether any node was removed."""
        found = eliminate_series(self.flat)
        if found is not None:
            self.take(*found)
            self.tidy()
        return found is not None

    def tidy(self) -> None:
        """Merges parallel edges, decides nodes with one option, drops what cannot matter."""
        step = keeping(self.flat, np.ones(len(self.flat.cost), dtype=np.bool_))
        self.take(remap(self.flat, step), step)


def reduce(flat: Flat, held: np.ndarray | None = None) -> Reduced:
    """Reduces a problem; its optimum stays what it was.

    Args:
        flat: the problem.
        held: options to consider, all if None.
    """
    state = Reduced(flat)
    if (flat.sizes == 0).any() or not np.isfinite(flat.constant):
        state.broken = True
        return state
    if held is None or held.all():
        state.tidy()
    else:
        state.keep(held)
    for _ in range(ROUNDS):
        before = len(state.flat.cost) + state.flat.entries
        state.keep(consistent(state.flat))
        if state.broken or not state.flat.size:
            break
        while state.merge_followers() and not state.broken:
            state.keep(consistent(state.flat))
        if not state.broken:
            state.keep(undominated(state.flat))
        while not state.broken and state.flat.size and state.eliminate():
            pass
        if state.broken or not state.flat.size:
            break
        settled = SETTLED if before < MANY else SETTLED_MANY
        if len(state.flat.cost) + state.flat.entries > (1 - settled) * before:
            break
    return state
