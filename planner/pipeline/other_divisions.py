"""Choices of what stages keep, in other divisions than that with the fastest kinds.

A division whose stages compute again by kind may be slower than another, and yet be the fastest
once they choose value by value. Two sorts of divisions are looked at, the fastest first: those that
were planned and are hardly slower; then those that would be faster than the best if no stage
computed anything again, wherever memory allows some kind. So are those that may be below one
program, where no pipeline without choices is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile

import numpy as np

from .divide.candidates import Candidates
from .divide.chosen_bounds import NONE, ChosenBounds
from .divide.dynamic_programme import Division
from .divide.placed import Placed, rows_of
from .divide.placements import Placements
from .polish import polished
from .stage_choices import chooses, may_be_below, with_choices
from .trials import PlannedPipeline, Trials

# Divisions beside the best that are planned for choices, and those in which choices are made. With
# 12 and 3 they took 0.2 to 3.1 s of searches of 28 to 84 s (`benchmarks pipeline-search`).
MOST_LOOKED, MOST_OTHERS = 12, 2
# Share by which choices may gain more in another division than in the best: 0.35 % in the loop of
# `tests/planner/pipeline/test_other_divisions.py`.
FASTER = 0.01


@dataclass
class OtherDivisions:
    """Divisions of one program.

    trials: the search that planned the best.
    candidates: the source of its divisions.
    schedules: names of the schedules to choose from.
    over: whether the search has to end.
    tried: (number of micro-batches, key) of those that were looked at.
    """

    trials: Trials
    candidates: Candidates
    schedules: tuple[str, ...]
    over: Callable[[], bool]
    tried: set[tuple[int, object]] = field(default_factory=set[tuple[int, object]])

    def best_with_choices(
        self, best: PlannedPipeline, counts: Sequence[int], likes: Sequence[Division]
    ) -> PlannedPipeline:
        """The fastest pipeline whose stages choose, given the fastest whose stages do not.

        Args:
            best: the fastest without choices.
            counts: numbers of micro-batches.
            likes: divisions into stages on the groups of devices to choose from.
        """
        first = self._with_choices(best)
        if not chooses(self.trials):
            return first
        others = chain(self._near(best), self._estimated(first.ranked.step_s, counts, likes))
        made: set[object] = {best.ranked.shape.division}
        return min([first, *self._chosen(others, made)], key=lambda one: one.ranked.step_s)

    def best_below(
        self, step_s: float, counts: Sequence[int], likes: Sequence[Division]
    ) -> PlannedPipeline | None:
        """The fastest pipeline whose stages choose, where none without choices is below a step.

        Args:
            step_s: of another plan [s].
            counts: numbers of micro-batches.
            likes: divisions into stages on the groups of devices to choose from.
        """
        if not chooses(self.trials):
            return None
        others = chain(self._planned_so_far(), self._estimated(step_s, counts, likes))
        hopeful = (one for one in others if may_be_below(one, self.trials, step_s))
        found = [*self._chosen(hopeful, set())]
        best = min(found, key=lambda one: one.ranked.step_s, default=None)
        return best if best and best.ranked.step_s < step_s else None

    def _chosen(
        self, others: Iterable[PlannedPipeline], made: set[object]
    ) -> Iterator[PlannedPipeline]:
        """The first of some divisions with choices; `made`: those that have them."""
        for one in others:
            if len(made) > MOST_OTHERS or self.over():
                break
            if one.ranked.shape.division not in made:
                made.add(one.ranked.shape.division)
                yield self._with_choices(one)

    def _planned_so_far(self) -> list[PlannedPipeline]:
        """Divisions that were planned, the fastest first."""
        return sorted(self.trials.planned.values(), key=lambda one: one.ranked.step_s)

    def _near(self, best: PlannedPipeline) -> Iterator[PlannedPipeline]:
        """Divisions that were planned, and are faster if choices gain as much, and a bit more."""
        limit_s = best.ranked.step_s * (1 + FASTER)
        yield from takewhile(lambda one: one.ranked.step_s < limit_s, self._planned_so_far())

    def _estimated(
        self, step_s: float, counts: Sequence[int], likes: Sequence[Division]
    ) -> Iterator[PlannedPipeline]:
        """Divisions below a step if no stage computes anything again, by their estimates."""
        bounds = ChosenBounds(self.trials.bounds, self.candidates.kinds)
        chosen = replace(self.candidates, bounds=bounds, kinds=(NONE,))
        placed = Placed(Placements(chosen, self.schedules), rows_of(counts, likes))
        for _ in range(MOST_LOOKED):
            least = placed.best(step_s, self.tried)
            if least is None:
                return
            count, family, division = least
            self.tried.add((count, division.key))
            placed.forget(count)
            one = self._planned(count, family, division)
            if one is not None:
                yield one

    def _with_choices(self, one: PlannedPipeline) -> PlannedPipeline:
        return with_choices(polished(one, self.trials), self.trials)

    def _planned(self, count: int, family: str, division: Division) -> PlannedPipeline | None:
        """A division with the kinds of the least estimates that fit; None if none do."""
        places = tuple(self.trials.shares.places[j] for j in division.places)
        known = self.trials.planned.get((count, places, division.sizes, division.turns))
        if known is not None:
            return known
        limited = Placements(self.candidates, self.schedules)
        kinds, steps_s = limited.steps_s(count, family, division, np.array([division.places]))
        if not np.isfinite(steps_s[0]):
            return None
        names = tuple(limited.kinds[int(k)] for k in kinds[0])
        return self.trials.trial(count, replace(division, recompute=names), family)
