"""Where divisions come from: a number of micro-batches under one way to schedule them.

A source knows a lower estimate of all its divisions at once, and finds the division that has it
when asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..schedule import Turns, turned
from .candidates import Candidates
from .dynamic_programme import Division, TooManyError, divisions


class Source(Protocol):
    """Divisions with `count` micro-batches.

    family: what sets the micro-batches in flight, a key of `IN_FLIGHT`, or a schedule with turns.
    least_s: lower estimate of their steps [s].
    division: the one that has it, if it was looked for.
    is_current: whether no stage was planned since that would change it.
    """

    candidates: Candidates
    count: int
    family: str
    least_s: float
    division: Division | None
    is_current: bool

    def estimate(self, below_s: float) -> bool:
        """Finds the division with the least estimate; False if none is below a limit [s]."""
        ...

    def again(self, one: Division) -> Division:
        """A division with the estimates of now."""
        ...

    def drop(self, one: Division) -> None:
        """Takes a division out of the source."""
        ...


@dataclass(eq=False)
class Chain:
    """Divisions of one stage on each group of devices.

    stages: numbers of stages to choose from.
    """

    candidates: Candidates
    count: int
    family: str
    stages: Sequence[int]
    division: Division | None = None
    is_current: bool = False
    least_s: float = field(init=False)
    dropped: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])

    def __post_init__(self) -> None:
        self.least_s = self.candidates.least_s(self.count)

    def estimate(self, below_s: float) -> bool:
        """See `Source`."""
        self.division = self.candidates.best(self.count, self.family, self.stages, below_s)
        self.is_current = True
        if self.division is not None and self.division.key in self.dropped:
            self.division = self._next(below_s, len(self.division.sizes))
        if self.division is not None:
            self.least_s = self.division.step_s
        return self.division is not None

    def _next(self, below_s: float, stages: int) -> Division | None:
        """The division with the least estimate of those that are not dropped."""
        space = self.candidates.space(self.count, self.family)
        order = divisions(space, self.stages, below_s)
        try:
            return next((one for one in order if one.key not in self.dropped), None)
        except TooManyError:  # those of other numbers of stages
            self.stages = [p for p in self.stages if p != stages]
            self.is_current = False
            return self.candidates.best(self.count, self.family, self.stages, below_s)

    def again(self, one: Division) -> Division:
        """See `Source`."""
        space = self.candidates.space(self.count, self.family)
        return space.estimated(one.places, one.sizes, one.recompute)

    def drop(self, one: Division) -> None:
        """See `Source`."""
        self.dropped.add(one.key)
        self.is_current = False


@dataclass(eq=False)
class InTurn:
    """Divisions in which stages take turns on `groups` equal groups of devices."""

    candidates: Candidates
    count: int
    groups: int
    turns: Turns
    division: Division | None = None
    is_current: bool = False
    family: str = field(init=False)
    least_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.family = turned(self.turns)
        self.least_s = self.candidates.least_s(self.count)

    def estimate(self, below_s: float) -> bool:
        """See `Source`."""
        self.division = self.candidates.in_turn(self.count, self.groups, self.turns)
        self.is_current = True
        if self.division is not None:
            self.least_s = self.division.step_s
        return self.division is not None and self.least_s < below_s

    def again(self, one: Division) -> Division:
        """See `Source`."""
        return self.candidates.estimated_in_turn(self.count, self.turns, one.places, one.recompute)

    def drop(self, one: Division) -> None:
        """Takes all divisions out: the estimates of others are no less."""
        self.least_s = float("inf")
