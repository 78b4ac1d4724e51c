# pyright: basic
"""The shortest period under a memory limit, as a mixed-integer programme.

With times in units of the busiest device's work and f = 1 / period, x_b = offset_b / period:

    max   f                                                      one more round per period
    s.t.  x_b' - x_b >= (t_b + gap) f               each need    order()
          t_i f <= x_j - x_i + q_ij <= 1 - t_j f    each pair    share_device()
          sum of what is held <= room               each start   fit_memory()
          f within what is known,  q_ij integer

q_ij counts how many periods lie between two blocks of one device; what is held when a block starts
is linear in q, since between blocks that do not overlap the number of starts that have happened is
the number of periods in between. The bound on f that the solver proves bounds the period.

Source: Serafini and Ukovich, A mathematical model for periodic scheduling problems, 1989.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import highspy
import numpy as np

from planner.pipeline.schedule.round import Round
from substitutions import QuietHighs

from .pattern import Pattern

MOST_PAIRS = 600  # more integer variables than this are not tried


@final
@dataclass(frozen=True, slots=True, eq=False)
class Periodic:
    """What the programme found.

    pattern: the best, or None.
    lower_bound_s: no pattern of one such round under the memory limit has a shorter period.
    proved: whether nothing fits (pattern None) or the pattern has the least period.
    """

    pattern: Pattern | None
    lower_bound_s: float
    proved: bool


def pairs_of(round_: Round) -> list[tuple[int, int]]:
    """Blocks that share a device, each pair once; blocks without time or memory are left out."""
    blocks = round_.blocks
    matters = {b for hold in round_.hold for b in hold[:2]}
    matters |= {b for b, block in enumerate(blocks) if block.seconds > 0}
    return [
        (i, j)
        for i in range(len(blocks))
        for j in range(i + 1, len(blocks))
        if blocks[i].device == blocks[j].device and {i, j} <= matters
    ]


def shortest_period(round_: Round, *, time_limit_s: float) -> Periodic:
    """Solves for the least period, then for the shortest round of that period.

    Args:
        round_: what repeats.
        time_limit_s: for both.
    """
    unit, least = max(round_.load_s), round_.least_period_s
    pairs = pairs_of(round_)
    if not pairs or len(pairs) > MOST_PAIRS or unit <= 0:
        return Periodic(None, least, False)
    model = _Model(round_, unit, pairs)
    model.solve(0.7 * time_limit_s)
    status = model.highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Periodic(None, float("inf"), True)
    best = model.highs.getInfo().mip_dual_bound
    bound = max(least, unit / best if np.isfinite(best) and best > 0 else least)
    if not model.has_solution():
        return Periodic(None, bound, False)
    rate = min(model.rate(), 1.0)
    first = model.pattern(rate)
    model.shorten(rate)
    model.solve(0.3 * time_limit_s)
    second = model.pattern(rate) if model.has_solution() else first
    pattern = min((first, second), key=lambda p: (p.excess_bytes(), p.span_s))
    proved = pattern.period_s <= bound * (1 + 1e-6)
    return Periodic(pattern, min(bound, pattern.period_s), proved)


class _Model:
    """The programme in HiGHS."""

    def __init__(self, round_: Round, unit: float, pairs: list[tuple[int, int]]) -> None:
        self.round, self.unit = round_, unit
        blocks = round_.blocks
        far = len(blocks) + 2.0
        self.highs = QuietHighs()
        self.highs.setOptionValue("threads", 1)
        self.highs.setOptionValue("random_seed", 0)
        self.highs.setOptionValue("mip_rel_gap", 1e-7)
        # One block after the other is a pattern, if one round fits at all.
        alone = sum(b.seconds for b in blocks) + sum(gap for *_, gap in round_.needs)
        self.f = self.highs.addVariable(unit / alone, unit / round_.least_period_s)
        self.x = [self.highs.addVariable(0.0, far) for _ in blocks]
        self.q = {
            pair: self.highs.addVariable(-far, far, type=highspy.HighsVarType.kInteger)
            for pair in pairs
        }
        self.order()
        self.share_device()
        self.fit_memory()
        self.highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self.highs.changeColCost(self.f.index, 1.0)

    def seconds(self, block: int) -> float:
        return self.round.blocks[block].seconds / self.unit

    def order(self) -> None:
        for before, after, gap in self.round.needs:
            lag = self.seconds(before) + gap / self.unit
            self.highs.addConstr(self.x[after] - self.x[before] - lag * self.f >= 0.0)

    def share_device(self) -> None:
        for (i, j), q in self.q.items():
            apart = self.x[j] - self.x[i] + q
            self.highs.addConstr(apart - self.seconds(i) * self.f >= 0.0)
            self.highs.addConstr(apart + self.seconds(j) * self.f <= 1.0)

    def add_begun(self, total: Any, block: int, at: int, size: float) -> Any:
        """`total` plus `size` for each start of `block` up to the start of `at`, per round."""
        if block == at:
            return total + size
        if (block, at) in self.q:
            return total + size - size * self.q[block, at]
        return total + size * self.q[at, block]

    def fit_memory(self) -> None:
        """At each start, sum over holds of (begun - ended) * bytes <= room."""
        for at, device in sorted({(first, device) for first, _, device, _ in self.round.hold}):
            room = self.round.room_bytes[device]
            if not np.isfinite(room):
                continue
            scale = max(size for *_, size in self.round.hold)
            total: Any = 0.0 * self.f
            for first, last, where, size in self.round.hold:
                if where == device:
                    total = self.add_begun(total, first, at, size / scale)
                    total = self.add_begun(total, last, at, -size / scale)
            self.highs.addConstr(total <= room / scale + 1e-9)

    def shorten(self, rate: float) -> None:
        """Fixes the period and minimises the length of a round."""
        span = self.highs.addVariable(0.0, highspy.kHighsInf)
        for block, x in enumerate(self.x):
            self.highs.addConstr(span - x >= self.seconds(block) * rate)
        self.highs.changeColBounds(self.f.index, rate, rate)
        self.highs.changeColCost(self.f.index, 0.0)
        self.highs.changeColCost(span.index, -1.0)

    def solve(self, time_limit_s: float) -> None:
        self.highs.setOptionValue("time_limit", self.highs.getRunTime() + max(time_limit_s, 0.1))
        self.highs.run()

    def has_solution(self) -> bool:
        feasible = highspy.SolutionStatus.kSolutionStatusFeasible
        return self.highs.getInfo().primal_solution_status == int(feasible)

    def rate(self) -> float:
        return float(self.highs.getSolution().col_value[self.f.index])

    def pattern(self, rate: float) -> Pattern:
        """Offsets, put right after each other in the order that the solver chose."""
        values = self.highs.getSolution().col_value
        period_s = self.unit / rate
        x = [float(values[v.index]) for v in self.x]
        q = {pair: round(values[v.index]) for pair, v in self.q.items()}
        return Pattern(self.round, period_s, _tightened(self.round, period_s, x, q))


def _tightened(
    round_: Round, period_s: float, x: list[float], q: dict[tuple[int, int], int]
) -> tuple[float, ...]:
    """Earliest offsets with the same needs and order of the blocks on each device."""
    blocks = round_.blocks
    arcs = [(a, b, blocks[a].seconds + gap) for a, b, gap in round_.needs]
    for (i, j), count in q.items():
        arcs.append((i, j, blocks[i].seconds - count * period_s))
        arcs.append((j, i, blocks[j].seconds + (count - 1) * period_s))
    offset = [0.0] * len(blocks)
    slack = 1e-9 * period_s
    for _ in range(len(blocks) + 1):
        moved = False
        for a, b, lag in arcs:
            if offset[b] < offset[a] + lag - slack:
                offset[b], moved = offset[a] + lag, True
        if not moved:
            return tuple(offset)
    low = min(x)  # the solver's tolerance leaves no earliest offsets: take its own
    return tuple((value - low) * period_s for value in x)
