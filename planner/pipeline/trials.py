# pyright: basic
"""Divisions of a pipeline tried: their stages planned, each distinct one once, and simulated."""

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
from .divide.simulated import Ranked, Shape, flights_of, ranked, table_of
from .divide.space import IN_FLIGHT, INTERLEAVED
from .divide.stage_price import StagePrice
from .stage_planner import BoundStages, StageError, StageFound, StagePlanner

# A stage whose plan was made for less room is planned again if all such stages would be worth it,
# were they faster by the first share, for a step that is faster by the second.
FASTER, WORTH = 0.05, 3e-3
SHORT = 1e-3  # a stage that does not fit needs so much more than there is, if no more is known


@dataclass(frozen=True)
class Found:
    """A pipeline whose stages are planned; `across` bytes go from each to the next.

    flight: micro-batches in flight for which each has room.
    """

    ranked: Ranked
    bound: BoundStages
    plans: tuple[PlannedProgram, ...]
    prices: tuple[StagePrice, ...]
    across: tuple[float, ...]
    flight: tuple[int, ...]


@dataclass
class Trials:
    """Plans the stages of divisions, and what they cost corrects the estimates.

    least: what tried pipelines would need at the worst place [byte].
    unable: numbers of micro-batches that the loss cannot be computed on.
    """

    planner: StagePlanner
    shares: Shares
    estimates: Estimates
    least: list[float] = field(default_factory=list)
    unable: set[int] = field(default_factory=set)

    def trial(
        self, count: int, one: Division, flights: str = "1f1b", below_s: float = float("inf")
    ) -> Found | None:
        """A division with its stages planned, under its best schedule.

        Args:
            count: micro-batches.
            one: the division.
            flights: kind of schedule whose micro-batches in flight have to fit.
            below_s: only steps below are of interest.

        Returns:
            None if it does not fit, or is seen not to be below.
        """
        try:
            loss = self.planner.loss(count)
        except IndivisibleError:
            if self.planner.options.microbatches is not None:
                raise
            self.unable.add(count)
            return None
        cuts = tuple(self.shares.places[j] for j in one.places)
        shape = Shape(cuts, one.sizes, count, one.recompute, one.chunks)
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
        self, cut: Staged, shape: Shape, one: Division, flight: Sequence[int], below_s: float
    ) -> list[StageFound] | None:
        """Every stage planned; None if one does not fit, or the step is not below.

        Those with most micro-batches in flight come first: equal stages may have their plans.
        Where these leave room, stages are planned again if the step would gain by it.
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
                    return None  # which tells nothing of others
                self._fails(one, count, s, flight[s], answer)
                short = True
                continue  # the others tell of further divisions
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
        """Corrects the estimates by the price of a stage, but one that had a part of the memory."""
        if one.chunks == 1:
            at = one.places[s], one.places[s + 1]
            self.estimates.learn(count, one.sizes[s], one.recompute[s], at, price)

    def _fails(self, one: Division, count: int, s: int, flight: int, error: StageError) -> None:
        """Corrects the estimates by what a stage that does not fit would need."""
        at, size, kind = (one.places[s], one.places[s + 1]), one.sizes[s], one.recompute[s]
        over = self.planner.limit_bytes * (1 + SHORT)
        if error.alone is None:  # what is computed again by stage does not help it
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
        shape: Shape,
        plans: Sequence[PlannedProgram],
        prices: Sequence[StagePrice],
        across: tuple[float, ...],
        flight: tuple[int, ...],
    ) -> Found | None:
        """Planned stages under their best schedule; None if that does not fit."""
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
        return Found(order[0], bound, tuple(plans), tuple(prices), across, flight)


def least_s(seconds: Sequence[float], count: int) -> float:
    """No pipeline of such stages is faster."""
    return sum(seconds) + (count - 1) * max(seconds)
