"""Lagrange multipliers of the memory limits, raised where memory is short and lowered where not.

A step follows the smoothed use of memory: each node takes its options in proportion to
exp(-c / temperature), c being the costs that message passing gives them. Of each run of moments
above the limit only the worst gets a multiplier, so that multipliers stay sparse.

Steps are aggressive or careful. Aggressive steps continue from the new iterate even if the bound
drops; after AWAY failures they restart from the best one, with shorter steps. They raise the bound
soonest. No multiplier changes more than twice as much as at its last change, nor more than half as
much where its direction turns. A careful step that does not raise the bound is undone, and the next
is a little shorter: it meets better choices on the way and takes longer. The temperature falls as
steps get short, and after each restart.

Any messages and multipliers give a valid bound, see `message_passing.py`.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from ..arrays import Flat, Ints, ranges
from ..budget import DEFAULT, Budget
from ..problem import Floats
from .coordinate_descent import Descent
from .message_passing import Lower, Messages

FIRST_STEP, LONGER = 0.05, 1.2
# For aggressive and for careful steps.
SHORTEST_STEP, NEXT_STEP, SHORTER, COOLER = (1e-3, 1e-4), (0.02, 0.01), (0.5, 0.7), (0.5, 0.7)
TURNED, FURTHER = 0.5, 2.0  # limits of a change, as shares of the last one
AWAY = 6  # steps in a row without a better bound, before a restart
HEAT = 0.1  # first temperature, as a share of the bound per node
MOST_STALE = 200  # steps
LITTLE = 0.005  # growth of the bound that counts, as a share of the gap
COLDEST = 1e-6  # of the first temperature


class Multipliers:
    """Multipliers of one problem, with the best bound and choice that they gave."""

    def __init__(
        self, flat: Flat, known: Floats | None = None, ceiling: float = np.inf, *,
        budget: Budget = DEFAULT, messages: Messages | None = None,
    ) -> None:  # fmt: skip
        """Computes a first bound.

        Args:
            flat: the problem.
            known: first multipliers, one per moment; zero if None.
            ceiling: cost of the best known choice [s].
            budget: limits of the search.
            messages: messages to continue from; zero if None.
        """
        self.flat = flat
        self.messages = messages or Messages(flat)
        self.descent = Descent(flat)
        self.counts = flat.sizes[flat.owner]
        self.use = flat.use[ranges(flat.use_at, self.counts)]
        self.option = ranges(flat.first[flat.owner], self.counts)
        self.stretch = np.repeat(np.arange(len(self.counts)), self.counts)
        self.node = np.repeat(np.arange(flat.size), flat.sizes)
        self.choice: Ints | None = None
        self.cost = ceiling
        if known is not None:
            self.messages.set_multiplier(known)
        self.messages.sweep()
        self.best = self.messages.lower()
        self.length = FIRST_STEP
        self.heat = HEAT
        self.little = LITTLE
        self.careful, self.sweeps = budget.careful, budget.sweeps
        self.moved = np.zeros(len(flat.limit))  # last change of each multiplier
        self.stale = 0  # steps since the bound grew by more than a little of the gap
        self.away = 0  # steps since it grew at all

    def with_costs(self, more: Floats) -> Multipliers:
        """Multipliers of the problem with `more` [s] added to its options, from the best ones."""
        self.rest()
        found = copy(self)
        found.messages = self.messages.with_costs(more)
        found.best = Lower(found.messages, self.best.bound)
        found.stale = found.away = 0
        return found

    # --- choices ---

    def offer(self, choice: Ints) -> bool:
        """Takes a choice if it fits and is better; whether it was taken."""
        cost = self.flat.cost_of(choice)
        if not cost < self.cost or not self.flat.fits(choice):
            return False
        self.choice, self.cost = choice, cost
        return True

    def round(self) -> bool:
        """Rounds the messages to a choice; whether it is the best so far."""
        return self.offer(self.descent.improve(self.messages.round()))

    def perturbed(self, random: np.random.Generator, heat: float) -> Ints | None:
        """A choice rounded from perturbed messages; None if it does not fit.

        Args:
            random: source of the perturbations.
            heat: mean of the exponential perturbation of each option [s].
        """
        found = self.messages.round(wrong=random.exponential(heat, len(self.flat.cost)))
        return self.descent.improve(found) if self.flat.fits(found) else None

    @property
    def multiplier(self) -> Floats:
        """Multiplier of each moment at the best bound."""
        return self.best.state[2]

    @property
    def gap(self) -> float:
        """Distance between the choice and the bound; the bound's size if there is no choice."""
        scale = max(abs(self.best.bound), 1e-300)
        return max(min(self.cost - self.best.bound, scale), 1e-12 * scale)

    # --- the bound ---

    def _take(self, lower: Lower) -> bool:
        if not lower.bound > self.best.bound:
            return False
        grown = lower.bound - self.best.bound
        self.stale = 0 if grown > self.little * self.gap else self.stale + 1
        self.best = lower
        return True

    def _room(self) -> Floats:
        """Limit minus smoothed use of memory at each moment [bytes]."""
        flat, seen = self.flat, self.messages.seen
        least = np.minimum.reduceat(seen, flat.first[:-1])[self.node]
        heat = self.heat * max(abs(self.best.bound), 1e-300) / flat.size
        weight = np.exp((least - seen) / heat)
        weight /= np.add.reduceat(weight, flat.first[:-1])[self.node]
        total = np.bincount(self.stretch, self.use * weight[self.option], len(self.counts))
        change = np.bincount(flat.begin, total, len(flat.limit) + 1)
        change -= np.bincount(flat.end, total, len(flat.limit) + 1)
        return flat.limit - np.cumsum(change)[:-1]

    def step(self) -> bool:
        """One change of the multipliers and some sweeps; whether that gave a better choice."""
        direction = self._direction()
        norm = float(direction @ direction)
        if norm > 0.0:
            self._move(self.length * self.gap / norm * direction)
        for _ in range(self.sweeps):
            self.messages.sweep()
        if self._take(self.messages.lower()):
            self.away = 0
            self.length *= LONGER
        else:
            self.stale += 1
            self.away += 1
            if self.careful or self.away >= AWAY:
                self._back()
        return self.round()

    def _move(self, change: Floats) -> None:
        """Changes multipliers; aggressive steps are limited by the last change of each."""
        known, last = self.messages.multiplier, self.moved
        change = np.maximum(change, -known)
        if not self.careful:
            most = np.where(change * last < 0.0, TURNED, FURTHER) * np.abs(last)
            change = np.where(last != 0.0, np.clip(change, -most, most), change)
            self.moved = np.where(change != 0.0, change, last)
        self.messages.set_multiplier(known + change)

    def rest(self) -> None:
        """Restores the messages of the best bound."""
        self.messages.restore(self.best.state)

    @property
    def improving(self) -> bool:
        """Whether the bound may still grow."""
        return self.stale < MOST_STALE

    def _direction(self) -> Floats:
        """Direction of change: up at the worst moments, either way at those with a multiplier."""
        if not len(self.flat.limit):
            return self.flat.limit
        over = -self._room()
        direction = np.where(self.messages.multiplier > 0.0, over, 0.0)
        peaks = worst(over > 0.0, -over)
        direction[peaks] = over[peaks]
        return direction

    def _back(self) -> None:
        """Restarts from the best multipliers (aggressive: and messages) with shorter steps."""
        if self.careful:
            self.messages.set_multiplier(self.multiplier)
            self.messages.sweep()
            self._take(self.messages.lower())
        else:
            self.rest()
        self.away = 0
        self.length *= SHORTER[self.careful]
        if not self.careful:
            self.heat = max(self.heat * COOLER[0], HEAT * COLDEST)
        if self.length < SHORTEST_STEP[self.careful]:
            self.heat = max(self.heat * COOLER[self.careful], HEAT * COLDEST)
            self.length = NEXT_STEP[self.careful]


def worst(over: np.ndarray, room: Floats) -> list[int]:
    """The worst moment of each run of moments that are over the limit."""
    starts = np.flatnonzero(over & ~np.concatenate(([False], over[:-1])))
    stops = np.flatnonzero(over & ~np.concatenate((over[1:], [False]))) + 1
    return [int(a + np.argmin(room[a:b])) for a, b in zip(starts, stops, strict=True)]
