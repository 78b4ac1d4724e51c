"""Divisions planned without a limit of memory, whose stages then choose until all of them fit.

A division that fits under no kind of recomputation may fit once values of its stages wait on the
host: these are copied for each micro-batch in flight, of which a stage then holds no more than two
layers. The division is the one with the least estimate; small micro-batches come first, as they
need the least memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..sharding.recompute.choose import SPARE
from ..sharding.search.asked import may_offload
from .divide.candidates import Candidates
from .divide.chosen_bounds import NONE
from .divide.dynamic_programme import Division
from .divide.stage_bounds import StageBounds
from .stage_choices import StageChoices, chooses
from .stage_planner import AMPLE
from .trials import PlannedPipeline, Trials

MOST_COUNTS = 3  # numbers of micro-batches until one fits, as of hand-written pipelines


@dataclass(frozen=True)
class Unlimited:
    """Divisions of one program.

    trials: the search under the limit.
    candidates: the source of its divisions.
    family: of schedules, which sets the micro-batches in flight.
    """

    trials: Trials
    candidates: Candidates
    family: str

    def fitted(self, counts: Sequence[int], stages: Sequence[int]) -> PlannedPipeline | None:
        """A pipeline that fits by choices, where none of the search did; None if none is found.

        Args:
            counts: numbers of micro-batches.
            stages: numbers of stages.
        """
        if self._may_choose:
            for count in sorted(counts, reverse=True)[:MOST_COUNTS]:
                found = self._chosen(count, stages)
                if found is not None:
                    return found
        if not self.trials.least and (one := self._least(counts[-1], stages)):
            self.trials.trial(counts[-1], one, self.family)  # for the bytes that it needs
        return None

    def faster(self, found: PlannedPipeline, stages: Sequence[int]) -> PlannedPipeline:
        """A pipeline, or a faster one that fits by choices alone, where a limit may slow it down.

        Args:
            found: the fastest with choices.
            stages: numbers of stages.
        """
        run = found.ranked
        if not self._may_choose or run.worst_bytes <= SPARE * self.trials.planner.limit_bytes:
            return found
        other = self._chosen(run.shape.microbatches, stages, run.step_s)
        return found if other is None or other.ranked.step_s >= run.step_s else other

    @property
    def _may_choose(self) -> bool:
        planner = self.trials.planner
        return chooses(self.trials) and may_offload(planner.options, planner.machine)

    @cached_property
    def _bounds(self) -> StageBounds:
        """Estimates without a limit, of stages planned so far."""
        limited = self.trials.bounds
        known = {
            kind: {run: [*rows] for run, rows in each.items()}
            for kind, each in limited.known.items()
        }
        return replace(limited, limit_bytes=math.inf, known=known, short=[], _costs={})

    def _least(self, count: int, stages: Sequence[int]) -> Division | None:
        """The division with the least estimate."""
        source = replace(self.candidates, bounds=self._bounds)
        return source.best(count, self.family, tuple(stages), math.inf)

    def _is_planned(self, count: int, one: Division) -> bool:
        """Whether a division fits, so that its choices are those of the search."""
        places = tuple(self.trials.shares.places[j] for j in one.places)
        return (count, places, one.sizes, one.turns) in self.trials.planned

    def _chosen(
        self, count: int, stages: Sequence[int], below_s: float = math.inf
    ) -> PlannedPipeline | None:
        """The division with the least estimate, if it fits by choices alone.

        None too if work alone takes `below_s` or more under any choice.
        """
        one = self._least(count, stages)
        if one is None or {*one.recompute} != {NONE} or self._is_planned(count, one):
            return None
        planner = self.trials.planner
        free = Trials(replace(planner, limit_bytes=AMPLE), self.trials.shares, self._bounds)
        base = free.trial(count, one, self.family)
        if base is None:
            return None
        choices = StageChoices(self.trials, base, fits=False)
        return choices.run() if choices.may_be_below(below_s) else None
