"""Costs of stages: exact where a stage was planned, else lower estimates.

A stage that contains planned ones takes at least their seconds, and those of the whole program's
plan for the rest, also with more micro-batches in flight. A stage does not fit if one does not
that needs no more memory: one that it contains, on as many devices or more, for micro-batches as
small or smaller, as few or fewer of them in flight, that recomputes as much or more. Equal runs of
layers have equal costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .run_costs import Costs, Floats, Shares, Whole
from .stage_price import StagePrice

Run = tuple[int, int]  # first place of a stage, and of the next
# Kinds of recomputation that keep as much or more, for each kind.
KEEP_MORE = {
    "none": ("none",), "selective": ("none", "selective"), "stage": ("none", "stage"),
    "full": ("none", "selective", "full"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageKind:
    """Stages that are alike but for their layers and their micro-batches in flight.

    count: number of micro-batches in a step.
    size: devices of the stage.
    recompute: one of `RECOMPUTE`.
    chunks: stages on its group of devices, which share its memory evenly.
    """

    count: int
    size: int
    recompute: str
    chunks: int = 1

    def needs_as_much(self, other: StageKind) -> bool:
        """Whether a stage of this kind needs as much memory as one of another kind, or more."""
        return (
            self.count <= other.count and self.size <= other.size and self.chunks >= other.chunks
            and self.recompute in KEEP_MORE[other.recompute]
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """The price of a planned stage with `flight` micro-batches in flight."""

    price: StagePrice
    flight: int

    def seconds(self, kind: StageKind, *, late: bool) -> tuple[float, float]:
        """Its `Costs.pace_s` and `Costs.fill_s`; arguments as of `StageBounds.costs`."""
        price = self.price
        micro = fill = price.paced_s(kind.recompute)
        if late and price.input_gradient_s:
            fill = max(micro - 2 * price.weight_gradient_s, price.forward_s)
        return micro + price.once_s / kind.count, fill


@dataclass
class StageBounds:
    """Lower estimates of the costs of every run of slots, exact for planned stages.

    state_bytes: parameters, optimizer state and sums of gradients of the whole program.
    limit_bytes: memory limit of a device.
    wholes: (micro-batches, devices) -> price of the whole program without a limit of memory.
    again: recomputation -> seconds that it adds to the whole program, over its forward pass.
    known: planned stages.
    short: stages that do not fit, with their micro-batches in flight.
    """

    shares: Shares
    state_bytes: float
    limit_bytes: float
    wholes: dict[tuple[int, int], StagePrice] = field(
        default_factory=dict[tuple[int, int], StagePrice]
    )
    again: dict[str, float] = field(default_factory=dict[str, float])
    known: dict[StageKind, dict[Run, list[Known]]] = field(
        default_factory=dict[StageKind, dict[Run, list[Known]]]
    )
    short: list[tuple[StageKind, Run, int]] = field(
        default_factory=list[tuple[StageKind, Run, int]]
    )
    _shared: dict[tuple[int, int], Whole] = field(default_factory=dict[tuple[int, int], Whole])
    _costs: dict[tuple[StageKind, int, bool], tuple[int, Costs]] = field(
        default_factory=dict[tuple[StageKind, int, bool], tuple[int, Costs]]
    )
    _seconds: dict[tuple[StageKind, bool], Costs] = field(
        default_factory=dict[tuple[StageKind, bool], Costs]
    )

    def whole(self, count: int, size: int) -> Whole:
        """The price of the whole program, linear in the size of a micro-batch and in 1 / devices.

        Raises:
            KeyError: if no whole program was priced.
        """
        if (count, size) not in self._shared:
            self._shared[count, size] = self._whole(count, size)
        return self._shared[count, size]

    def _whole(self, count: int, size: int) -> Whole:
        if (count, size) in self.wholes:
            price, along = self.wholes[count, size], self.shares.along
            return Whole(price, along(price.forward), along(price.back))
        rows = sorted(m for m, d in self.wholes if d == size)
        if rows:
            a, b = _around(rows, count)
            share = 1.0 if a == b else (1 / count - 1 / b) / (1 / a - 1 / b)
            return _between(self.whole(a, size), self.whole(b, size), share)
        sizes = sorted({d for _, d in self.wholes})
        a, b = _around(sizes, size)
        share = 1.0 if a == b else (1 / size - 1 / b) / (1 / a - 1 / b)
        return _between(self.whole(count, a), self.whole(count, b), share)

    def saved_bytes(self, count: int) -> float:
        """Activations of the whole program for one micro-batch, on all devices together."""
        sizes = {d for _, d in self.wholes}
        return min(d * self.whole(count, d).price.activation_bytes for d in sizes)

    def costs(self, kind: StageKind, flight: int, *, late: bool) -> Costs:
        """Costs of every run as a stage.

        Args:
            kind: kind of the stage.
            flight: micro-batches in flight.
            late: weight gradients may fill the time in which a stage waits.
        """
        known = self.known.get(kind, {})
        version = sum(map(len, known.values())) + len(self.short)
        held = self._costs.get((kind, flight, late))
        if held is not None and held[0] == version:
            return held[1]
        costs = self._lower(kind, flight, late=late)
        if known:
            costs = self._with(kind, known, costs, flight, late=late)
        for other, (i, j), least in self.short:
            if least <= flight and kind.needs_as_much(other):
                for a, b in self.shares.alike((i, j)):
                    costs.pace_s[: a + 1, b:] = np.inf
                    costs.fill_s[: a + 1, b:] = np.inf
        self._costs[kind, flight, late] = version, costs
        return costs

    def _lower(self, kind: StageKind, flight: int, *, late: bool) -> Costs:
        """Estimates without planned stages."""
        if (kind, late) not in self._seconds:
            whole, again = self.whole(kind.count, kind.size), self.again.get(kind.recompute, 1.0)
            self._seconds[kind, late] = self.shares.costs(
                whole, kind.count, kind.recompute, again, late=late
            )
        costs, saved_bytes = self._seconds[kind, late], self.saved_bytes(kind.count)
        needs = self.shares.least_bytes(saved_bytes, self.state_bytes, kind.recompute, flight)
        fits = needs <= self.limit_bytes * kind.size / kind.chunks
        return Costs(np.where(fits, costs.pace_s, np.inf), np.where(fits, costs.fill_s, np.inf))

    def _with(
        self, kind: StageKind, known: Mapping[Run, list[Known]], costs: Costs, flight: int, *,
        late: bool,
    ) -> Costs:  # fmt: skip
        """Estimates corrected by planned stages."""
        pace, fill = costs.pace_s.copy(), costs.fill_s.copy()
        exact: list[tuple[Run, tuple[float, float]]] = []
        for at, rows in known.items():
            below = [row.seconds(kind, late=late) for row in rows if row.flight <= flight]
            here = [row.seconds(kind, late=late) for row in rows if row.flight == flight]
            for same in self.shares.alike(at):
                for pace_s, fill_s in below:
                    pace[same] = max(pace[same], pace_s)
                    fill[same] = max(fill[same], fill_s)
                exact += [(same, seconds) for seconds in here]
        _close(pace)
        _close(fill)
        for same, seconds in exact:
            pace[same], fill[same] = seconds
        return Costs(pace, fill)

    def note_short(self, kind: StageKind, at: Run, flight: int) -> None:
        """Records that a stage does not fit with `flight` micro-batches in flight."""
        self.short.append((kind, at, flight))

    def note(self, kind: StageKind, at: Run, known: Known) -> None:
        """Records the costs of a planned stage."""
        rows = self.known.setdefault(kind, {}).setdefault(at, [])
        if known not in rows:
            rows.append(known)


def _around(values: list[int], goal: int) -> tuple[int, int]:
    """The two values around a goal, or the nearest two; one value twice if there is no other."""
    k = sum(value < goal for value in values)
    k = min(max(k, 1), len(values) - 1)
    return (values[k - 1], values[k]) if len(values) > 1 else (values[0], values[0])


def _close(seconds: Floats) -> None:
    """Raises every run to the sum of any two that it consists of."""
    n = len(seconds)
    for span in range(2, n):
        for i in range(n - span):
            j = i + span
            parts = seconds[i, i + 1 : j] + seconds[i + 1 : j, j]
            seconds[i, j] = max(seconds[i, j], float(parts.max()))


def _between(a: Whole, b: Whole, share: float) -> Whole:
    def mixed(x: Any, y: Any) -> Any:
        return np.maximum(share * x + (1 - share) * y, 0.0)

    found: dict[str, Any] = {
        f.name: float(mixed(getattr(a.price, f.name), getattr(b.price, f.name)))
        for f in fields(StagePrice) if f.name not in ("forward", "back")
    }  # fmt: skip
    return Whole(StagePrice(**found), mixed(a.forward, b.forward), mixed(a.back, b.back))
