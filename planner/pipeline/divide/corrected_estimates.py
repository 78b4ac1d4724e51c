"""What is known of costs of stages: prices of the whole program, and of planned stages."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .run_costs import Costs, Floats, Ratio, Shares, Whole
from .stage_price import StagePrice

# Memory that is only guessed is taken for less: plans of stages make do with what there is, and to
# try one costs little.
HOPE = 0.85


@dataclass(frozen=True, slots=True)
class Known:
    """A run of slots that was planned as a stage.

    micro_s: of a micro-batch, infinite if not even one fits.
    held_bytes: with one in flight, at least that if it does not fit.
    more_bytes: for each further one; at least that if they do not fit.
    fits: whether it did, with what was in flight.
    """

    micro_s: float
    held_bytes: float
    more_bytes: float
    fits: bool = True


@dataclass
class Estimates:
    """Estimated costs of every run of slots, corrected by those that are known.

    wholes: (micro-batches, devices) -> price of the whole program; shared: the same shared out.
    ratios, exact: (micro-batches, devices, recomputation) -> what planned stages said.
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
        """A price that was worked out, or one between those of neighbours."""
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
        """Estimated costs of every run, and those that are known; None if nothing is."""
        whole = self.whole(count, size)
        if whole is None:
            return None
        ratio = self.ratios.get((count, size, kind), Ratio())
        costs = self.shares.costs(whole, count, kind, ratio)
        micro = costs.micro_s * self._paces(count, size, kind, costs.micro_s)
        held, more = HOPE * costs.held_bytes, HOPE * costs.more_bytes
        for at, known in self.exact.get((count, size, kind), {}).items():
            most = np.minimum if known.fits else np.maximum  # plans use the memory that there is
            for same in self.shares.alike(at):
                micro[same] = known.micro_s
                held[same] = most(costs.held_bytes[same], known.held_bytes)
                more[same] = most(costs.more_bytes[same], known.more_bytes)
        return Costs(micro, held, more)

    def _paces(self, count: int, size: int, kind: str, guess: Floats) -> Floats:
        """What every run takes over what was guessed, from the runs that are known.

        A part has the pace of the shortest known run that it lies in; what lies in none, the
        median of these paces.
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
        """Corrects the estimates of stages like one that was planned.

        Args:
            count: micro-batches of a step.
            size: devices of the stage.
            kind: of recomputation.
            at: first place of the stage, and of the next.
            price: of the stage.
        """
        micro = price.paced_s(kind) + price.once_s / count
        self.note(count, size, kind, at, Known(micro, price.held_bytes, price.more_bytes(kind)))

    def note(self, count: int, size: int, kind: str, at: tuple[int, int], found: Known) -> None:
        """Notes what a run of slots costs: it holds there, its ratio to the guess elsewhere."""
        whole = self.whole(count, size)
        if whole is None:
            return  # a division that was not found by estimates
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
