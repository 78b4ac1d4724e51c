"""A program as a row of slots between which it can be cut into stages."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ..errors import PlanError

# Stages may differ by this share of an even one's work if fewer bytes cross then.
UNEVEN = 0.1


@dataclass(frozen=True, slots=True)
class Slot:
    """The smallest part of a program that a stage may hold.

    op: what it runs; slots of one loop have the same `number`.
    flops: of the forward pass.
    params: (leaf, bytes) of every parameter that it reads; of a loop, one iteration's share.
    moved_bytes, saved_bytes, kept_bytes: of the forward pass: read and written, read by the
        backward pass, kept of that under selective recomputation.
    again_flops, again_bytes: computed and moved again by it.
    widest_bytes: most that a single equation reads and writes.
    """

    op: str
    number: int
    flops: float
    params: tuple[tuple[int, float], ...]
    moved_bytes: float = 0.0
    saved_bytes: float = 0.0
    kept_bytes: float = 0.0
    again_flops: float = 0.0
    again_bytes: float = 0.0
    widest_bytes: float = 0.0


@dataclass(frozen=True)
class Chain:
    """Slots in order; `across[c]` bytes of values made before cut c are read after it.

    recomputes: the program says itself what its backward pass computes again.
    """

    slots: tuple[Slot, ...]
    across: tuple[float, ...]
    recomputes: bool = False

    @cached_property
    def work(self) -> tuple[float, ...]:
        """Flops before each cut."""
        return (0.0, *accumulate(slot.flops for slot in self.slots))

    def places(self, reach: float = 0.02) -> tuple[int, ...]:
        """Cuts worth a look: the narrowest first, none within `reach` of the work to another."""
        span = reach * self.work[-1]
        order = sorted(range(1, len(self.slots)), key=lambda c: (self.across[c], c))
        found: list[int] = []
        at: list[float] = []
        for c in order:
            i = bisect(at, self.work[c])
            near = at[max(i - 1, 0) : i + 1]
            if all(abs(w - self.work[c]) >= span for w in near):
                found.insert(i, c)
                at.insert(i, self.work[c])
        return tuple(found)


def cuts_by_share(chain: Chain, shares: Sequence[float]) -> tuple[int, ...]:
    """Cuts at places such that the work of the stages is nearest to the shares asked for.

    Minimises the largest work of a stage over its share, in steps of `UNEVEN`, then the bytes
    that cross, then that work itself.

    Raises:
        PlanError: if there are fewer places than stages ask for.
    """
    stages = len(shares)
    places = (0, *chain.places(), len(chain.slots))
    if len(places) <= stages:
        raise PlanError(
            f"{stages} stages, but the program has {len(places) - 1} layers between which it can "
            "be cut", kind="bad-option", where="pipeline", remedy="ask for fewer stages",
        )  # fmt: skip
    count = len(places)
    infinity = (math.inf, math.inf, math.inf)
    step = UNEVEN * chain.work[-1] / sum(shares) or 1.0
    best = [[infinity] * count for _ in range(stages + 1)]
    back = [[0] * count for _ in range(stages + 1)]
    best[0][0] = (0.0, 0.0, 0.0)
    for s in range(1, stages + 1):
        for j in range(s, count):
            for i in range(s - 1, j):
                load = (chain.work[places[j]] - chain.work[places[i]]) / shares[s - 1]
                _, crossed, worst = best[s - 1][i]
                if math.isinf(worst):
                    continue
                width = chain.across[places[j]] if j < count - 1 else 0.0
                worst = max(worst, load)
                priced = (math.ceil(worst / step - 1e-9), crossed + width, worst)
                if priced < best[s][j]:
                    best[s][j], back[s][j] = priced, i
    cuts = [count - 1]
    for s in range(stages, 0, -1):
        cuts.append(back[s][cuts[-1]])
    return tuple(places[j] for j in reversed(cuts))
