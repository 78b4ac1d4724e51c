# pyright: basic
"""Plans and simulates divisions of a pipeline; each distinct stage is planned once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..common.errors import IndivisibleError
from ..sharding.planned_program import PlannedProgram
from .bound_stages import BoundStages
from .cut.opened_loss import cut_of
from .divide.candidates import flights_in_turn
from .divide.dynamic_programme import Division
from .divide.run_costs import Shares
from .divide.simulated import PipelineShape, Ranked, ranked
from .divide.stage_bounds import Known, StageBounds, StageKind
from .divide.stage_price import StagePrice
from .schedule import IN_FLIGHT
from .stage_planner import StageError, StageFound, StagePlanner
from .stage_works import StageWorks

WORTH = 3e-3  # a stage is planned with more mesh axes if the step may become this share faster


@dataclass(frozen=True)
class PlannedPipeline:
    """A pipeline with planned stages.

    across: bytes of one micro-batch that each stage sends to the next.
    flight: micro-batches in flight that each stage has memory for.
    """

    ranked: Ranked
    bound: BoundStages
    plans: tuple[PlannedProgram, ...]
    prices: tuple[StagePrice, ...]
    across: tuple[float, ...]
    flight: tuple[int, ...]


@dataclass
class Trials:
    """Plans the stages of divisions and notes their prices in the estimates.

    least: bytes that each tried pipeline needs on its fullest device.
    able: numbers of micro-batches, and whether the search can divide the loss into them.
    tried: (number of micro-batches, key) of the divisions.
    divisions: the divisions, in order.
    planned: the fastest pipeline of each division that fits.
    best: the fastest pipeline so far that fits.
    """

    planner: StagePlanner
    shares: Shares
    bounds: StageBounds
    least: list[float] = field(default_factory=list)
    able: dict[int, bool] = field(default_factory=dict[int, bool])
    tried: set[tuple[int, object]] = field(default_factory=set[tuple[int, object]])
    divisions: list[Division] = field(default_factory=list[Division])
    planned: dict[object, PlannedPipeline] = field(default_factory=dict[object, PlannedPipeline])
    best: PlannedPipeline | None = None

    @cached_property
    def works(self) -> StageWorks:
        """What stages may compute again and send to the host."""
        return StageWorks(self.planner)

    def is_able(self, count: int) -> bool:
        """Whether the loss can be computed in `count` micro-batches, by the slots of the search.

        The program of a micro-batch may have other slots, for example where it has one example.

        Raises:
            IndivisibleError: if the options ask for this number, and it is not possible.
        """
        if count not in self.able:
            try:
                chain = self.planner.loss(count).chain
                self.able[count] = (0, *chain.places(), len(chain.slots)) == self.shares.places
            except IndivisibleError:
                if self.planner.options.microbatches is not None:
                    raise
                self.able[count] = False
        return self.able[count]

    def is_known(self, count: int) -> bool:
        """Whether the search has all pipelines with a number of micro-batches."""
        try:
            self.planner.loss(count)
        except IndivisibleError:
            return True
        return self.is_able(count)

    def trial(
        self,
        count: int,
        one: Division,
        flights: str = "1f1b",
        is_hopeful: Callable[[], bool] = lambda: True,
    ) -> PlannedPipeline | None:
        """Plans the stages of a division and chooses the best schedule.

        Args:
            count: number of micro-batches.
            one: the division.
            flights: schedule family that sets the micro-batches in flight, a key of `IN_FLIGHT`.
            is_hopeful: whether to go on, after each stage.

        Returns:
            The pipeline; None if it does not fit, or was given up.
        """
        self.tried.add((count, one.key))
        self.divisions.append(one)
        loss = self.planner.loss(count)
        cuts = tuple(self.shares.places[j] for j in one.places)
        shape = PipelineShape(cuts, one.sizes, count, one.recompute, one.turns)
        p = len(one.sizes)
        devices = "+".join(map(str, shape.groups))
        self.planner.say(f"{p} stages on {devices} devices, {count} micro-batches")
        cut = cut_of(loss, cuts, one.recompute)
        across = tuple(loss.chain.across[c] for c in cuts[1:-1])
        flight = flight_of(count, one, flights)
        found: dict[int, StageFound] = {}
        for s in sorted(range(p), key=lambda s: -flight[s]):  # equal stages reuse plans
            answer = self.planner.stage(cut, shape, s, flight[s])
            kind = StageKind(count, one.sizes[s], one.recompute[s], one.turns.chunks)
            at = one.places[s], one.places[s + 1]
            if isinstance(answer, StageError):
                self.least.append(answer.needs_bytes)
                self.bounds.note_short(kind, at, flight[s])
                return None
            found[s] = answer
            self.bounds.note(kind, at, Known(answer[1], flight[s]))
            if not is_hopeful():
                return None
        plans, prices = zip(*(found[s] for s in range(p)), strict=True)
        bound = BoundStages(loss, cut, self.planner.training.optimizer)
        made = self.ranked(bound, shape, plans, prices, across, flight)
        if made is not None:
            known = self.planned.setdefault(shape.division, made)
            if made.ranked.step_s < known.ranked.step_s:
                self.planned[shape.division] = made
        return made

    def ranked(
        self,
        bound: BoundStages,
        shape: PipelineShape,
        plans: Sequence[PlannedProgram],
        prices: Sequence[StagePrice],
        across: tuple[float, ...],
        flight: tuple[int, ...],
    ) -> PlannedPipeline | None:
        """The pipeline of planned stages under its best schedule; None if that does not fit."""
        order = ranked(
            shape,
            prices,
            across,
            self.planner.machine,
            self.planner.limit_bytes,
            self.planner.options.schedules,
        )
        self.least.append(min(r.worst_bytes for r in order))
        if order[0].worst_bytes > self.planner.limit_bytes:
            return None
        found = PlannedPipeline(order[0], bound, tuple(plans), tuple(prices), across, flight)
        if self.best is None or found.ranked.step_s < self.best.ranked.step_s:
            self.best = found
        return found


def flight_of(count: int, one: Division, flights: str) -> tuple[int, ...]:
    """Micro-batches in flight on each stage of a division; arguments as of `Trials.trial`."""
    p = len(one.sizes)
    if one.turns.chunks > 1:
        return flights_in_turn(count, p // one.turns.chunks, one.turns)
    return tuple(IN_FLIGHT[flights](p - s, count) for s in range(p))


def least_s(seconds: Sequence[float], count: int) -> float:
    """Bound of the step: sum of t_s + (count - 1) * max of t_s, with stage times t_s [s]."""
    return sum(seconds) + (count - 1) * max(seconds)
