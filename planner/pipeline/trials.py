# pyright: basic
"""Plans and simulates divisions of a pipeline; each distinct stage is planned once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..common.errors import IndivisibleError
from ..sharding.planned_program import PlannedProgram
from .cut.opened_loss import cut_of
from .cut.stage import Staged
from .divide.corrected_estimates import Estimates, Known
from .divide.dynamic_programme import Division
from .divide.run_costs import Shares
from .divide.simulated import PipelineShape, Ranked, flights_of, ranked, table_of
from .divide.stage_price import StagePrice
from .schedule import IN_FLIGHT, INTERLEAVED
from .stage_planner import BoundStages, StageError, StageFound, StagePlanner

# A stage that reuses a plan made for less memory is planned anew if the step would be faster by
# `WORTH` were all such stages faster by `FASTER`.
FASTER, WORTH = 0.05, 3e-3
SHORT = 1e-3  # a stage that does not fit needs at least this share more than there is


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
    """Plans the stages of divisions and corrects the estimates by their prices.

    least: bytes that each tried pipeline needs on its fullest device.
    unable: numbers of micro-batches into which the loss cannot be divided.
    """

    planner: StagePlanner
    shares: Shares
    estimates: Estimates
    least: list[float] = field(default_factory=list)
    unable: set[int] = field(default_factory=set)

    def trial(
        self, count: int, one: Division, flights: str = "1f1b", below_s: float = float("inf")
    ) -> PlannedPipeline | None:
        """Plans the stages of a division and chooses the best schedule.

        Args:
            count: number of micro-batches.
            one: the division.
            flights: schedule family that sets the micro-batches in flight, a key of `IN_FLIGHT`.
            below_s: upper limit of the step [s].

        Returns:
            The pipeline; None if it does not fit, or its step cannot be below the limit.
        """
        try:
            loss = self.planner.loss(count)
        except IndivisibleError:
            if self.planner.options.microbatches is not None:
                raise
            self.unable.add(count)
            return None
        cuts = tuple(self.shares.places[j] for j in one.places)
        shape = PipelineShape(cuts, one.sizes, count, one.recompute, one.chunks)
        p = len(one.sizes)
        devices = "+".join(map(str, shape.groups))
        self.planner.say(f"{p} stages on {devices} devices, {count} micro-batches")
        cut = cut_of(loss, cuts, one.recompute)
        across = tuple(loss.chain.across[c] for c in cuts[1:-1])
        flight = tuple(IN_FLIGHT[flights](p - s, count) for s in range(p))
        if one.chunks > 1:
            flight = flights_of(table_of(INTERLEAVED, count, one.recompute, one.chunks))
        stages = self._stages(cut, shape, one, flight, below_s)
        if stages is None:
            return None
        plans, prices = zip(*stages, strict=True)
        bound = BoundStages(loss, cut, self.planner.training.optimizer)
        return self.ranked(bound, shape, plans, prices, across, flight)

    def _stages(
        self,
        cut: Staged,
        shape: PipelineShape,
        one: Division,
        flight: Sequence[int],
        below_s: float,
    ) -> list[StageFound] | None:
        """Plans every stage; None if one does not fit, or the step cannot be below the limit.

        Stages with most micro-batches in flight come first, so that equal stages reuse their plans.
        Those that have memory to spare are planned anew if the step would be faster by `WORTH`.
        """
        count, planner = shape.microbatches, self.planner
        found: dict[int, StageFound] = {}
        loose: list[int] = []
        short = False
        for s in sorted(range(len(flight)), key=lambda s: -flight[s]):
            answer = planner.roomier(cut, shape, s, flight[s])
            if answer is not None:
                loose.append(s)
            else:
                answer = planner.stage(cut, shape, s, flight[s])
            if isinstance(answer, StageError):
                self.least.append(answer.needs_bytes)
                if one.chunks > 1:
                    return None  # no estimate of other divisions follows from it
                self._fails(one, count, s, flight[s], answer)
                short = True
                continue  # the other stages correct the estimates
            found[s] = answer
            self._learns(one, count, s, answer[1])
            seconds = [f[1].paced_s(shape.recompute[k]) for k, f in found.items()]
            if not loose and least_s(seconds, count) > below_s:
                return None
        if short:
            return None
        seconds = [found[s][1].paced_s(shape.recompute[s]) for s in range(len(flight))]
        hoped = [t * (1 - FASTER * (s in loose)) for s, t in enumerate(seconds)]
        if least_s(hoped, count) < (1 - WORTH) * least_s(seconds, count):
            for s in reversed(loose):
                answer = planner.stage(cut, shape, s, flight[s])
                if not isinstance(answer, StageError):
                    found[s] = min(answer, found[s], key=lambda f: f[0].step_s)
        return [found[s] for s in range(len(flight))]

    def _learns(self, one: Division, count: int, s: int, price: StagePrice) -> None:
        """Corrects the estimates by a stage's price, unless the stage had a part of the memory."""
        if one.chunks == 1:
            at = one.places[s], one.places[s + 1]
            self.estimates.learn(count, one.sizes[s], one.recompute[s], at, price)

    def _fails(self, one: Division, count: int, s: int, flight: int, error: StageError) -> None:
        """Corrects the estimates by the memory that a stage which does not fit would need."""
        at, size, kind = (one.places[s], one.places[s + 1]), one.sizes[s], one.recompute[s]
        over = self.planner.limit_bytes * (1 + SHORT)
        if error.alone is None:  # recomputing the whole stage does not help it
            known = Known(float("inf"), max(error.needs_bytes, over), 0.0, fits=False)
            for same in ("none", "stage") if kind in ("none", "stage") else (kind,):
                self.estimates.note(count, size, same, at, known)
            return
        price = error.alone
        micro = price.paced_s(kind) + price.once_s / count
        more = max(over - price.held_bytes, 0.0) / (flight - 1)
        known = Known(micro, price.held_bytes, more, fits=False)
        self.estimates.note(count, size, kind, at, known)

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
        return PlannedPipeline(order[0], bound, tuple(plans), tuple(prices), across, flight)


def least_s(seconds: Sequence[float], count: int) -> float:
    """Bound of the step: sum of t_s + (count - 1) * max of t_s, with stage times t_s [s]."""
    return sum(seconds) + (count - 1) * max(seconds)
