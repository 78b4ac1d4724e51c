"""A traced loss as a sequence of slots; a stage is a range of slots."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Slot:
    """One op of the forward pass, or one iteration of a loop over layers.

    op: name of the op; slots of one loop have the same `number`.
    flops: floating-point operations of the forward pass; products: those of its contractions and
        convolutions.
    params: of every parameter read, the leaf, the first and the end of its entries that are read,
        and their bytes; of a loop, one iteration's share.
    moved_bytes: bytes that the forward pass reads and writes.
    saved_bytes: bytes that the backward pass reads of the forward pass.
    kept_bytes: the part of `saved_bytes` that selective recomputation keeps.
    again_flops, again_bytes: operations and moved bytes that selective recomputation repeats.
    widest_bytes: most bytes that a single equation reads and writes.
    """

    op: str
    number: int
    flops: float
    params: tuple[tuple[tuple[int, int, int], float], ...]
    moved_bytes: float = 0.0
    saved_bytes: float = 0.0
    kept_bytes: float = 0.0
    again_flops: float = 0.0
    again_bytes: float = 0.0
    widest_bytes: float = 0.0
    products: float = 0.0


@dataclass(frozen=True)
class Chain:
    """Slots in order; `across[c]` is the bytes of values made before cut c and read after it.

    recomputes: whether the program has recomputed regions (`jax.checkpoint`) of its own.
    """

    slots: tuple[Slot, ...]
    across: tuple[float, ...]
    recomputes: bool = False

    @cached_property
    def work(self) -> tuple[float, ...]:
        """Floating-point operations before each cut."""
        return (0.0, *accumulate(slot.flops for slot in self.slots))

    def places(self, reach: float = 0.02) -> tuple[int, ...]:
        """Candidate cuts: narrowest first, at least `reach` of the total work apart; sorted."""
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
