"""Lower bounds of the step of all pipelines, before any is planned and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..common.errors import IndivisibleError
from .cut.stage_training_step import StageTrainingStep
from .divide.dynamic_programme import EXACT
from .divide.space import sizes
from .proof import CLOSE, MOST_UNITS, Proof
from .schedule import Turns


@dataclass
class EveryPipeline:
    """Bounds all pipelines of a search.

    counts: numbers of micro-batches to choose from.
    closed_s: step below which bounds say that there is none; 0 if they were not asked, or do not.
    """

    proof: Proof
    counts: Sequence[int]
    closed_s: float = 0.0

    def none_is_below(
        self, step_s: float, stages: Sequence[int], turns: Sequence[tuple[int, Turns]]
    ) -> bool:
        """Whether bounds say that no pipeline is below a step [s].

        The work of a step comes first, then, where the program has few distinct layers, bounds of
        the divisions of the numbers of micro-batches with less.

        Args:
            step_s: the step.
            stages: numbers of stages.
            turns: (groups of devices, how stages take turns on them).
        """
        limit_s, left = step_s * (1 - EXACT), list[int]()
        for count in self.counts if stages else ():
            with suppress(IndivisibleError):
                left += [count] * (self._least_work_s(count, limit_s) < limit_s)
        is_closed = not left
        if left and self.proof.floors.distinct <= MOST_UNITS:
            listed = all(map(self.proof.trials.is_able, left))
            is_closed = listed and self.proof.none_is_below(step_s, left, stages, turns)
        self.closed_s = limit_s * is_closed
        return is_closed

    def lower_bound_s(self, step_s: float, rewritten: Sequence[StageTrainingStep] = ()) -> float:
        """Bound of all pipelines with one kind of recomputation in each stage [s].

        It is infinite if there are none. Arguments as of `PipelineSearch.lower_bound_s`.
        """
        if self.closed_s:
            return self.closed_s
        # the proof has no pipelines of other slots, nor of programs that were rewritten
        is_listed = not rewritten and self.proof.divisions.has_begun
        works, trials = list[float](), self.proof.trials
        others = [m for m in self.counts if not (is_listed and trials.is_known(m))]
        for count in others:
            with suppress(IndivisibleError):
                works.append(self._least_work_s(count))
        if rewritten:
            chosen = sizes(trials.planner.machine)
            work_s = sum(trials.planner.work_s(stage, chosen) for stage in rewritten)
            works.append(work_s / trials.planner.machine.num_devices)
        least_s = min(works, default=math.inf)
        if is_listed:
            # beyond its least the others do not count
            least_s = min(least_s, self.proof.lower_bound_s(min(step_s, least_s / (1 - CLOSE))))
        return least_s

    def _least_work_s(self, count: int, limit_s: float = -math.inf) -> float:
        """Work of a step over all devices, or that of a kind of recomputation below a limit [s]."""
        planner, least_s = self.proof.trials.planner, math.inf
        for kind in self.proof.floors.kinds:
            work_s = planner.least_work_s(count, sizes(planner.machine), kind)
            least_s = min(least_s, work_s / planner.machine.num_devices)
            if least_s < limit_s:
                break
        return least_s
