"""Estimated costs of stages: from prices of the whole program, corrected by planned stages."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .run_costs import Costs, Floats, Ratio, Shares, Whole
from .stage_price import StagePrice

# Estimates of memory are scaled down: planning a stage often needs less memory than estimated, and
# one more trial costs little.
HOPE = 0.85


@dataclass(frozen=True, slots=True)
class Known:
    """Costs of a run of slots that was planned as a stage.

    micro_s: seconds of one micro-batch; infinite if not even one fits.
    held_bytes: memory with one micro-batch in flight; a lower bound if that does not fit.
    more_bytes: memory of each further one in flight; a lower bound if these do not fit.
    fits: whether the planned number of micro-batches in flight fits.
    """

    micro_s: float
    held_bytes: float
    more_bytes: float
    fits: bool = True


@dataclass
class Estimates:
    """Estimated costs of every run of slots, corrected by planned stages.

    wholes: (micro-batches, devices) -> price of the whole program; shared: these with the shares of
        every run.
    ratios, exact: (micro-batches, devices, recomputation) -> costs of planned stages.
    """

    shares: Shares
    wholes: dict[tuple[int, int], StagePrice] = field(
        default_factory=dict[tuple[int, int], StagePrice]
    )
    ratios: dict[tuple[int, int, str], Ratio] = field(
        default_factory=dict[tuple[int, int, str], Ratio]
    )
    shared: dict[tuple[int, int], Whole] = field(default_factory=dict[tuple[int, int], Whole])
    exact: dict[tuple[int, int, str], dict[tuple[int, int], Known]] = field(
        default_factory=dict[tuple[int, int, str], dict[tuple[int, int], Known]]
    )

    def whole(self, count: int, size: int) -> Whole | None:
        """The price of the whole program, interpolated between numbers of micro-batches."""
        if (count, size) in self.wholes:
            return self._shared(count, size)
        rows = sorted({m for m, d in self.wholes if d == size})
        low = [m for m in rows if m < count]
        high = [m for m in rows if m > count]
        if rows and low and high:
            a, b = low[-1], high[0]  # seconds are close to linear in the size of a micro-batch
            share = (1 / count - 1 / b) / (1 / a - 1 / b)
            return _between(self._shared(a, size), self._shared(b, size), share)
        columns = sorted({d for m, d in self.wholes if m == count})
        small = [d for d in columns if d < size]
        large = [d for d in columns if d > size]
        if not rows and small and large:
            a, b = small[-1], large[0]
            share = (1 / size - 1 / b) / (1 / a - 1 / b)
            return _between(self._shared(count, a), self._shared(count, b), share)
        return None

    def _shared(self, count: int, size: int) -> Whole:
        price, along = self.wholes[count, size], self.shares.along
        if (count, size) not in self.shared:
            self.shared[count, size] = Whole(price, along(price.forward), along(price.back))
        return self.shared[count, size]

    def costs(self, count: int, size: int, kind: str) -> Costs | None:
        """Costs of every run: known or estimated; None without a price of the whole program."""
        whole = self.whole(count, size)
        if whole is None:
            return None
        ratio = self.ratios.get((count, size, kind), Ratio())
        costs = self.shares.costs(whole, count, kind, ratio)
        micro = costs.micro_s * self._paces(count, size, kind, costs.micro_s)
        held, more = HOPE * costs.held_bytes, HOPE * costs.more_bytes
        for at, known in self.exact.get((count, size, kind), {}).items():
            most = np.minimum if known.fits else np.maximum  # plans may use all memory
            for same in self.shares.alike(at):
                micro[same] = known.micro_s
                held[same] = most(costs.held_bytes[same], known.held_bytes)
                more[same] = most(costs.more_bytes[same], known.more_bytes)
        return Costs(micro, held, more)

    def _paces(self, count: int, size: int, kind: str, guess: Floats) -> Floats:
        """Ratio of known to estimated seconds for every run.

        A run has the ratio of the shortest known run that contains it; else the median of these.
        """
        n = self.shares.count
        rows = [
            (j - i, i, j, known.micro_s / float(guess[i, j]))
            for at, known in self.exact.get((count, size, kind), {}).items()
            if np.isfinite(known.micro_s)
            for i, j in self.shares.alike(at)
        ]
        if not rows:
            return np.ones((n, n))
        parts = np.full(n - 1, float(np.median([row[3] for row in rows])))
        for _, i, j, pace in sorted(rows, reverse=True):
            parts[i:j] = pace
        each = np.diagonal(guess, 1)
        paced, own = (np.concatenate(([0.0], np.cumsum(x))) for x in (each * parts, each))
        paced, own = (x[None, :] - x[:, None] for x in (paced, own))
        return np.where(own > 0, paced / np.where(own > 0, own, 1.0), 1.0)

    def learn(
        self, count: int, size: int, kind: str, at: tuple[int, int], price: StagePrice
    ) -> None:
        """Corrects the estimates by a planned stage.

        Args:
            count: number of micro-batches in a step.
            size: devices of the stage.
            kind: kind of recomputation.
            at: first place of the stage, and of the next.
            price: price of the stage.
        """
        micro = price.paced_s(kind) + price.once_s / count
        self.note(count, size, kind, at, Known(micro, price.held_bytes, price.more_bytes(kind)))

    def note(self, count: int, size: int, kind: str, at: tuple[int, int], found: Known) -> None:
        """Records the costs of a run of slots; their ratio to the estimate corrects other runs."""
        whole = self.whole(count, size)
        if whole is None:
            return  # the division was not made from estimates
        self.exact.setdefault((count, size, kind), {})[at] = found
        guess = self.shares.costs(whole, count, kind, Ratio())
        rows = self.exact[count, size, kind]
        held = [r.held_bytes / max(guess.held_bytes[at], 1.0) for at, r in rows.items()]
        more = [r.more_bytes / max(guess.more_bytes[at], 1.0) for at, r in rows.items()
                if r.more_bytes]  # fmt: skip
        self.ratios[count, size, kind] = Ratio(
            float(np.median(held)), float(np.median(more or [1.0]))
        )


def _between(a: Whole, b: Whole, share: float) -> Whole:
    found: dict[str, Any] = {
        f.name: share * getattr(a.price, f.name) + (1 - share) * getattr(b.price, f.name)
        for f in fields(StagePrice) if f.name not in ("forward", "back")
    }  # fmt: skip
    forward, back = (
        share * a.forward + (1 - share) * b.forward,
        share * a.back + (1 - share) * b.back,
    )
    return Whole(StagePrice(**found), forward, back)
