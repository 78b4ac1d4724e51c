"""What is known of costs of stages: prices of the whole program, and of planned stages."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from .estimate import Costs, Ratio, Shares
from .price import StagePrice

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

    wholes: (micro-batches, devices) -> price of the whole program.
    ratios, exact: (micro-batches, devices, recomputation) -> what planned stages said.
    """

    shares: Shares
    wholes: dict[tuple[int, int], StagePrice] = field(
        default_factory=dict[tuple[int, int], StagePrice]
    )
    ratios: dict[tuple[int, int, str], Ratio] = field(
        default_factory=dict[tuple[int, int, str], Ratio]
    )
    exact: dict[tuple[int, int, str], dict[tuple[int, int], Known]] = field(
        default_factory=dict[tuple[int, int, str], dict[tuple[int, int], Known]]
    )

    def whole(self, count: int, size: int) -> StagePrice | None:
        """A price that was worked out, or one between those of neighbours."""
        found = self.wholes.get((count, size))
        if found is not None:
            return found
        rows = sorted({m for m, d in self.wholes if d == size})
        low = [m for m in rows if m < count]
        high = [m for m in rows if m > count]
        if rows and low and high:
            a, b = low[-1], high[0]  # seconds are close to linear in the size of a micro-batch
            share = (1 / count - 1 / b) / (1 / a - 1 / b)
            return _between(self.wholes[a, size], self.wholes[b, size], share)
        columns = sorted({d for m, d in self.wholes if m == count})
        small = [d for d in columns if d < size]
        large = [d for d in columns if d > size]
        if not rows and small and large:
            a, b = small[-1], large[0]
            share = (1 / size - 1 / b) / (1 / a - 1 / b)
            return _between(self.wholes[count, a], self.wholes[count, b], share)
        return None

    def costs(self, count: int, size: int, kind: str) -> Costs | None:
        """Estimated costs of every run, and those that are known; None if nothing is."""
        whole = self.whole(count, size)
        if whole is None:
            return None
        ratio = self.ratios.get((count, size, kind), Ratio())
        costs = self.shares.costs(whole, count, kind, ratio)
        micro, held, more = (
            np.array(costs.micro_s),
            HOPE * costs.held_bytes,
            HOPE * costs.more_bytes,
        )
        for at, known in self.exact.get((count, size, kind), {}).items():
            most = np.minimum if known.fits else np.maximum  # plans use the memory that there is
            for same in self.shares.alike(at):
                micro[same] = known.micro_s
                held[same] = most(costs.held_bytes[same], known.held_bytes)
                more[same] = most(costs.more_bytes[same], known.more_bytes)
        return Costs(micro, held, more)

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
        more = price.boundary_bytes if kind == "stage" else price.activation_bytes
        self.note(count, size, kind, at, Known(micro, price.held_bytes, more))

    def note(self, count: int, size: int, kind: str, at: tuple[int, int], found: Known) -> None:
        """Notes what a run of slots costs: it holds there, its ratio to the guess elsewhere."""
        whole = self.whole(count, size)
        if whole is None:
            return  # a division that was not found by estimates
        self.exact.setdefault((count, size, kind), {})[at] = found
        guess = self.shares.costs(whole, count, kind, Ratio())
        rows = self.exact[count, size, kind]
        micro = [
            r.micro_s / float(guess.micro_s[at]) for at, r in rows.items() if np.isfinite(r.micro_s)
        ]
        held = [r.held_bytes / max(guess.held_bytes[at], 1.0) for at, r in rows.items()]
        more = [r.more_bytes / max(guess.more_bytes[at], 1.0) for at, r in rows.items()
                if r.more_bytes]  # fmt: skip
        self.ratios[count, size, kind] = Ratio(
            float(np.median(micro or [1.0])),
            float(np.median(held)),
            float(np.median(more or [1.0])),
        )


def _between(a: StagePrice, b: StagePrice, share: float) -> StagePrice:
    pairs = ((getattr(a, f.name), getattr(b, f.name)) for f in fields(StagePrice))
    return StagePrice(*(share * x + (1 - share) * y for x, y in pairs))
