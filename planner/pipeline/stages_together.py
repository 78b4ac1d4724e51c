"""Choices of all stages of a pipeline together: the shortest step that fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from costmodel import Cluster

from .divide.simulated import PipelineShape, Ranked, ranked
from .divide.stage_price import StagePrice
from .stage_hosts import HostRoom
from .stage_planner import StageFound
from .stage_works import Choice
from .trials import PlannedPipeline

CHOSEN = "chosen"  # the kind of recomputation of a stage with a choice


@dataclass(frozen=True)
class PlannedChoice:
    """A stage with a choice, and its plan."""

    choice: Choice
    found: StageFound


ChosenStages = dict[int, PlannedChoice | None]  # None where a stage is as it was planned


@dataclass(frozen=True)
class AllStages:
    """The stages of a pipeline, with choices of some of them.

    limit_bytes: memory of a device.
    """

    pipeline: PlannedPipeline
    machine: Cluster
    limit_bytes: float

    @cached_property
    def shape(self) -> PipelineShape:
        return self.pipeline.ranked.shape

    def together(
        self, kept: dict[int, PlannedChoice], hosted: dict[int, list[PlannedChoice]]
    ) -> dict[int, PlannedChoice]:
        """Choices of all stages whose step is short: changed stage by stage, from three starts.

        Memory of a stage depends on the others too: where an earlier one is faster, more of what
        it sends waits.

        Args:
            kept: the fastest choice of each stage with nothing on the host, if it has one.
            hosted: its choices with values there.
        """
        every: dict[int, list[PlannedChoice | None]] = {
            s: [None, *([kept[s]] if s in kept else ()), *some] for s, some in hosted.items()
        }
        starts: list[ChosenStages] = [
            {s: min(some, key=lambda one: self._needed(s, one)) for s, some in every.items()},
            {s: min(some, key=lambda one: self._paced(s, one)) for s, some in every.items()},
            {s: kept.get(s) for s in every},
        ]
        best = min((self._improved(start, every) for start in starts), key=self.rank)
        return {s: one for s, one in best.items() if one is not None}

    def _improved(
        self, start: ChosenStages, every: dict[int, list[PlannedChoice | None]]
    ) -> ChosenStages:
        """Choices changed in one stage after another, as long as that makes the step shorter."""
        best, rank, before = start, self.rank(start), (math.inf, math.inf)
        while rank < before:
            before = rank
            for s, some in every.items():
                ranks = [(self.rank({**best, s: one}), n) for n, one in enumerate(some)]
                least, n = min(ranks)
                if least < rank:
                    best, rank = {**best, s: some[n]}, least
        return best

    def fits(self, s: int, one: PlannedChoice) -> bool:
        """Whether a stage with a choice fits, if the others are as they were planned."""
        run, over = self._run({s: one})
        return not over and run.peak_bytes[s] <= self.limit_bytes

    def rank(self, found: ChosenStages) -> tuple[float, float]:
        """Bytes that choices of stages need above the limits, and their step [s]."""
        run, over = self._run(found)
        return over + max(run.worst_bytes - self.limit_bytes, 0.0), run.step_s

    def _run(self, found: ChosenStages) -> tuple[Ranked, float]:
        """The pipeline with some choices, and bytes that its hosts lack."""
        before, room = self.pipeline, HostRoom(self.machine)
        prices, kinds, over = [*before.prices], [*self.shape.recompute], 0.0
        for s, one in found.items():
            if one is not None:
                prices[s], kinds[s] = one.found[1], CHOSEN
                nbytes = before.flight[s] * prices[s].host_bytes
                over += 0.0 if room.fits(self._devices(s), nbytes) else nbytes
                room.take(self._devices(s), nbytes)
        shape, names = replace(self.shape, recompute=tuple(kinds)), (before.ranked.schedule,)
        run = ranked(shape, prices, before.across, self.machine, self.limit_bytes, names)[0]
        return run, over

    def _devices(self, s: int) -> range:
        """Devices of a stage."""
        starts = (0, *accumulate(self.shape.groups))
        first = starts[self.shape.group[s]]
        return range(first, first + self.shape.sizes[s])

    def _needed(self, s: int, one: PlannedChoice | None) -> float:
        """Memory of a device."""
        price, kind = self._priced(s, one)
        return price.needed_bytes(kind, self.pipeline.flight[s])

    def _paced(self, s: int, one: PlannedChoice | None) -> float:
        """Seconds of a micro-batch."""
        return seconds_of(*self._priced(s, one), self.shape.microbatches)

    def _priced(self, s: int, one: PlannedChoice | None) -> tuple[StagePrice, str]:
        if one is None:
            return self.pipeline.prices[s], self.shape.recompute[s]
        return one.found[1], CHOSEN


def seconds_of(price: StagePrice, kind: str, microbatches: int) -> float:
    """Seconds of a micro-batch, with its share of what a step has once.

    Args:
        price: of the stage.
        kind: of its recomputation.
        microbatches: of a step.
    """
    return price.paced_s(kind) + price.once_s / microbatches
