"""Prices of memory, raised where too much of it is used and lowered where it is not.

A step follows the smoothed use of memory: every node takes its options in proportion to
exp(-c / temperature), c what message passing knows of their cost. Only the worst moments of every
stretch over the limit get a price, so that prices stay sparse. Steps are bold or careful. Bold ones
go on from where they led even where the bound falls, as messages that climb from elsewhere do not
get stuck at the same place; after some in a row without a better bound, they go on from the best
one and are shorter. No price goes more than twice as far as the last time, nor more than half as
far where it turns: around the best price the way shrinks. They raise the bound soonest. A careful
one that does not raise the bound is taken back and the next is a little shorter: choices on the way
are better, for who has the time. The temperature falls as steps get short, and with every bold
stretch that led nowhere.

The bound of any messages and prices is valid, see `message_passing.py`.
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
# Of bold and of careful steps.
SHORTEST_STEP, NEXT_STEP, SHORTER, COOLER = (1e-3, 1e-4), (0.02, 0.01), (0.5, 0.7), (0.5, 0.7)
TURNED, FURTHER = 0.5, 2.0  # by how much prices move, as shares of the last time
AWAY = 6  # steps in a row without a better bound
HEAT = 0.1  # first temperature, as a share of the bound per node
MOST_STALE = 200  # steps
LITTLE = 0.005  # share of the gap
COLDEST = 1e-6  # of the first temperature


class Prices:
    """Bounds and choices of one problem, better with every step."""

    def __init__(
        self, flat: Flat, known: Floats | None = None, ceiling: float = np.inf, *,
        budget: Budget = DEFAULT, messages: Messages | None = None,
    ) -> None:  # fmt: skip
        """Takes the problem.

        Args:
            flat: the problem.
            known: prices to start from.
            ceiling: the cost of a choice known elsewhere.
            budget: of the search.
            messages: of the problem, that go on; new ones if None.
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
            self.messages.pay(known)
        self.messages.sweep()
        self.best = self.messages.lower()
        self.length = FIRST_STEP
        self.heat = HEAT
        self.little = LITTLE
        self.careful, self.sweeps = budget.careful, budget.sweeps
        self.moved = np.zeros(len(flat.limit))  # how prices changed, each when it last did
        self.stale = 0  # steps since the bound grew by more than a little of the gap
        self.away = 0  # steps since it grew at all

    def beside(self, more: Floats) -> Prices:
        """Prices of the same problem where options cost more, which go on from the best ones."""
        self.rest()
        found = copy(self)
        found.messages = self.messages.dearer(more)
        found.best = Lower(found.messages, self.best.bound)
        found.stale = found.away = 0
        return found

    # --- choices ---

    def offer(self, choice: Ints) -> bool:
        """Keeps a choice that fits and is better."""
        cost = self.flat.price(choice)
        if not cost < self.cost or not self.flat.fits(choice):
            return False
        self.choice, self.cost = choice, cost
        return True

    def round(self) -> bool:
        """Reads a choice off the messages; whether it is the best so far."""
        return self.offer(self.descent.improve(self.messages.round()))

    def other(self, random: np.random.Generator, heat: float) -> Ints | None:
        """A choice read off messages that are a little wrong; None if it does not fit.

        Args:
            random: says how.
            heat: by how much each option may seem dearer, on average.
        """
        found = self.messages.round(wrong=random.exponential(heat, len(self.flat.cost)))
        return self.descent.improve(found) if self.flat.fits(found) else None

    @property
    def price(self) -> Floats:
        """Prices of the best bound."""
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
        """What is left of memory under the smoothed use of it."""
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
        """One change of prices with some sweeps; whether a better choice came out."""
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
        """Changes prices; of bold steps none by much more than the last time, less if it turns."""
        known, last = self.messages.price, self.moved
        change = np.maximum(change, -known)
        if not self.careful:
            most = np.where(change * last < 0.0, TURNED, FURTHER) * np.abs(last)
            change = np.where(last != 0.0, np.clip(change, -most, most), change)
            self.moved = np.where(change != 0.0, change, last)
        self.messages.pay(known + change)

    def rest(self) -> None:
        """Goes back to the messages of the best bound."""
        self.messages.restore(self.best.state)

    @property
    def improving(self) -> bool:
        """Whether the bound may still grow."""
        return self.stale < MOST_STALE

    def _direction(self) -> Floats:
        """Along which prices change: up at the worst moments, up or down where there is one."""
        if not len(self.flat.limit):
            return self.flat.limit
        over = -self._room()
        direction = np.where(self.messages.price > 0.0, over, 0.0)
        peaks = worst(over > 0.0, -over)
        direction[peaks] = over[peaks]
        return direction

    def _back(self) -> None:
        """Goes on from the best prices, and from their messages if bold, by shorter steps."""
        if self.careful:
            self.messages.pay(self.price)
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
