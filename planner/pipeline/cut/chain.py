"""A program as a row of slots between which it can be cut into stages."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Slot:
    """The smallest part of a program that a stage may hold.

    op: what it runs; slots of one loop have the same `number`.
    flops: of the forward pass; products: of its contractions and convolutions.
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
    products: float = 0.0


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
