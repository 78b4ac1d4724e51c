"""Finds a schedule for a placement for which none is published.

Candidates: patterns at the least period that the busiest device allows, the programme's pattern
where memory forbids that, the list scheduler, published schedules for that placement. Each is
unrolled to the micro-batches of the step, its idle time filled, simulated, and refused if its
memory is over the limit. What is proved is said: a bound on the period under the memory limit, and
a bound on the step.

Source: Lin et al., Tessel, HPCA 2024.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from planner import PlanError
from planner.common.stop import Stop
from planner.pipeline.schedule.costs import Links, StageCosts
from planner.pipeline.schedule.greedy import greedy
from planner.pipeline.schedule.placement import Placement
from planner.pipeline.schedule.registry import schedules
from planner.pipeline.schedule.round import TOLERANCE, Round, round_of
from planner.pipeline.schedule.simulate import Simulator
from planner.pipeline.schedule.table import Schedule
from planner.pipeline.schedule.task import Kind
from planner.pipeline.schedule.timeline import Timeline

from .fill_idle import compact
from .modulo import modulo_patterns
from .pattern import Pattern
from .periodic import shortest_period

# Longer periods that are tried by list scheduling when memory forbids the shortest.
SLOWER = tuple(1.02**k for k in range(1, 36))
TRIES = 48
BEST_FEW = 6
MOST_COPIES = 3  # micro-batches of each route in one round of a pattern
EARLY = ((), (Kind.WEIGHT_GRADIENT,), (Kind.FORWARD, Kind.WEIGHT_GRADIENT), tuple(Kind))


@final
@dataclass(frozen=True, slots=True, eq=False)
class FoundSchedule:
    """The best schedule that was found.

    period_s: of its steady state, per micro-batch on each route; infinite if it has no pattern.
    period_bound_s: no steady state under the memory limit is faster.
    lower_bound_s: no schedule of these micro-batches has a shorter step.
    origin: what it came from: `pattern`, `programme`, `greedy` or a schedule of the registry.
    """

    schedule: Schedule
    timeline: Timeline
    period_s: float
    period_bound_s: float
    lower_bound_s: float
    stop: Stop
    origin: str

    @property
    def step_s(self) -> float:
        """Simulated time of the step."""
        return self.timeline.step_s


@dataclass(frozen=True, slots=True)
class _Asked:
    placement: Placement
    microbatches: int
    costs: StageCosts
    memory_bytes: tuple[float, ...]
    links: Links | None
    seed: int


def find_schedule(
    placement: Placement,
    microbatches: int,
    costs: StageCosts,
    *,
    memory_bytes: Sequence[float] = (),
    links: Links | None = None,
    split: bool = True,
    time_limit_s: float = 20.0,
    seed: int = 0,
) -> FoundSchedule:
    """The fastest schedule found for chunks that may lie anywhere.

    Args:
        placement: of the chunks; several may share a device, flows may branch and join.
        microbatches: in a step.
        costs: of the stages.
        memory_bytes: of each device, for everything; no limit if empty.
        links: between devices.
        split: whether weight gradients may run apart from input gradients.
        time_limit_s: for the programme.
        seed: of the restarts.

    Raises:
        PlanError: if not even one micro-batch at a time fits.
    """
    asked = _Asked(placement, microbatches, costs, tuple(memory_bytes), links, seed)
    rounds = [
        round_of(
            placement, costs, split=split, links=links, memory_bytes=memory_bytes, copies=copies
        )
        for copies in range(1, MOST_COPIES + 1)
    ]
    round_ = rounds[0]
    _check_room(round_)
    begun = time.monotonic()
    patterns, late = _patterns(rounds, seed, time_limit_s)
    best: tuple[float, str, Pattern | None, Timeline] | None = None
    for origin, pattern, schedule in _candidates(asked, round_, patterns, split=split):
        timeline = Simulator(schedule).run(costs, links)
        if not _fits(timeline, memory_bytes):
            continue
        if best is None or timeline.step_s < best[0] * (1 - TOLERANCE):
            best = timeline.step_s, origin, pattern, timeline
    if best is None:
        raise PlanError(
            "no schedule was found whose transfers fit beside the activations",
            kind="does-not-fit", where="memory_bytes", remedy="allow more memory",
        )  # fmt: skip
    step_s, origin, pattern, timeline = best
    least = min(round_.lower_bound_s(microbatches / len(placement.routes)), step_s)
    closed = step_s <= least * (1 + 1e-6)
    late = late and time.monotonic() - begun >= 0.9 * time_limit_s
    stop = Stop.OPTIMAL if closed else Stop.TIME_LIMIT if late else Stop.GAP
    period_s = math.inf if pattern is None else pattern.period_s / pattern.round.copies
    return FoundSchedule(
        timeline.schedule, timeline, period_s, round_.least_period_s, least, stop, origin
    )


def _check_room(round_: Round) -> None:
    """One micro-batch of each route alone must fit."""
    need = [0.0] * round_.placement.devices
    for _, _, device, size in round_.hold:
        need[device] += size
    for device, (least, room) in enumerate(zip(need, round_.room_bytes, strict=True)):
        if least > room * (1 + TOLERANCE) or room < 0:
            raise PlanError(
                f"a round needs {least:.4g} bytes of activations, weights and the rest leave "
                f"{room:.4g}", kind="does-not-fit", where=f"device {device}",
                remedy=f"allow {least - room:.4g} bytes more, recompute, or move chunks",
            )  # fmt: skip


def _patterns(
    rounds: Sequence[Round], seed: int, time_limit_s: float
) -> tuple[list[tuple[str, Pattern]], bool]:
    """Patterns that fit, and whether time ran out before the shortest of them was proved.

    List scheduling at the least period comes first. Where that does not fit, longer periods, the
    programme, and rounds of more micro-batches are tried until one fits at the least period.
    """
    found: list[tuple[str, Pattern]] = []
    late = False
    for round_ in rounds:
        least = round_.least_period_s
        if least <= 0:
            return [], False
        for factor in (1.0, *SLOWER):
            quick = modulo_patterns(round_, least * factor, tries=TRIES, seed=seed)
            fitting = [p for p in quick if p.excess_bytes() <= 0]
            if fitting:
                found += [("pattern", p) for p in fitting[:BEST_FEW]]
                break
        if _is_least(found):
            return found, False
        exact = shortest_period(round_, time_limit_s=time_limit_s / 2**round_.copies)
        late |= not exact.proved
        if exact.pattern is not None and exact.pattern.excess_bytes() <= 0:
            found.append(("programme", exact.pattern))
        if _is_least(found):
            return found, False
    return found, late


def _is_least(found: list[tuple[str, Pattern]]) -> bool:
    return any(p.period_s <= p.round.least_period_s * (1 + 1e-6) for _, p in found)


def _candidates(
    asked: _Asked, round_: Round, patterns: list[tuple[str, Pattern]], *, split: bool
) -> Iterator[tuple[str, Pattern | None, Schedule]]:
    """Schedules to simulate."""
    room = round_.room_bytes
    for origin, pattern in patterns:
        for variant in dict.fromkeys((pattern, late_weights(pattern))):
            whole = variant.schedule(asked.microbatches)
            yield origin, variant, whole
            for early in EARLY:
                filled = compact(
                    whole, asked.costs, links=asked.links, room_bytes=room, early=early
                )
                yield origin, variant, filled
    limits = [r if math.isfinite(r) else 1e300 for r in room]
    for halves in {False, split}:
        plain = greedy(
            asked.placement, asked.microbatches, asked.costs, split=halves, memory_bytes=limits
        )
        yield "greedy", None, plain
    yield from _published(asked, split=split)


def _published(asked: _Asked, *, split: bool) -> Iterator[tuple[str, None, Schedule]]:
    """Schedules of the registry that are for this placement."""
    for name, builder in schedules().items():
        try:
            found = builder(asked.placement.devices, asked.microbatches)
        except PlanError:
            continue  # numbers that this one does not take
        halves = any(bool(np.any(t[:, 0] == Kind.WEIGHT_GRADIENT)) for t in found.tables)
        same = found.placement == asked.placement and found.slices == 1 and not found.update_every
        if same and (split or not halves):
            yield name, None, found


def late_weights(pattern: Pattern) -> Pattern:
    """Weight gradients put off by whole periods, to be there for the drain.

    A device goes on so long after its last input gradient as the rest of the round takes; that
    time is worth filling, as far as memory allows.
    """
    round_ = pattern.round
    offsets = list(pattern.offset_s)
    held = pattern.held_bytes()
    for device in range(round_.placement.devices):
        mine = [b for b, block in enumerate(round_.blocks) if block.device == device]
        weights = [b for b in mine if round_.blocks[b].kind is Kind.WEIGHT_GRADIENT]
        work = sum(round_.blocks[b].seconds for b in weights)
        if not weights or work <= 0:
            continue
        tail = min(round_.tail_s[b] for b in mine if b not in weights)
        each = sum(size for _, last, _, size in round_.hold if last in weights)
        spare = (round_.room_bytes[device] - held[device]) * (1 + TOLERANCE)
        most = spare // each if each > 0 else math.inf
        periods = int(min(math.ceil(tail / work - TOLERANCE), most))
        for b in weights:
            offsets[b] += periods * pattern.period_s
    late = replace(pattern, offset_s=tuple(offsets))
    return late if late.excess_bytes() <= pattern.excess_bytes() else pattern


def _fits(timeline: Timeline, memory_bytes: Sequence[float]) -> bool:
    if not memory_bytes:
        return True
    pairs = itertools.zip_longest(timeline.peak_bytes, memory_bytes)
    return all(peak <= limit * (1 + TOLERANCE) for peak, limit in pairs)
