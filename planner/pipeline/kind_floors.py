"""Least seconds and bytes of all stages under one kind of recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .stage_units import Unit
from .unit_bytes import UnitBytes, needed_bytes, on_host

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Run = tuple[int, int]


@dataclass(frozen=True)
class KindFloors:
    """Least seconds of every run under a kind of recomputation, [first place, last place].

    forward_s: forward pass of one micro-batch; back_s: what the gradients that it sends need.
    floor_s: forward and backward of one micro-batch by its ops alone; passes_s: the same, with what
        the solver proves.
    begun_s, rest_s: the forward program of one micro-batch, and the rest of it, under any kind.
    input_s, weight_s: the part of the rest before its gradients are sent back, and after that.
    sent_s, early_s: as `passes_s` and `floor_s`, of what comes before its gradients are sent back.
    late_s: the rest of the backward pass.
    once_s: once a step.
    step_s: all micro-batches, and what is done once a step.
    units: bytes of the runs between neighbouring places.
    """

    forward_s: Floats
    back_s: Floats
    floor_s: Floats
    passes_s: Floats
    begun_s: Floats
    rest_s: Floats
    input_s: Floats
    weight_s: Floats
    sent_s: Floats
    early_s: Floats
    late_s: Floats
    once_s: Floats
    step_s: Floats
    units: tuple[UnitBytes, ...]
    _needed: dict[int, Floats] = field(default_factory=dict[int, Floats])

    def needed_bytes(self, flight: int) -> Floats:
        """Least bytes of all devices together with `flight` micro-batches in flight."""
        if flight not in self._needed:
            self._needed[flight] = needed_bytes(self.units, flight)
        return self._needed[flight]

    def on_host(self) -> KindFloors:
        """The same where all that is saved may wait in the memory of the host."""
        return replace(self, units=tuple(on_host(unit) for unit in self.units), _needed={})

    def again(self, count: int) -> KindFloors:
        """The same where the whole stage is computed again before its gradients come in.

        Other micro-batches in flight then hold its inputs alone.

        Args:
            count: number of micro-batches.
        """
        units = tuple(replace(unit, flying=0.0) for unit in self.units)
        return replace(
            self, step_s=self.step_s + count * self.forward_s, units=units, _needed={}
        )  # fmt: skip


def kind_floors(
    each: Floats, least: Floats, held: Sequence[UnitBytes], sent: Bools, count: int
) -> KindFloors:
    """Floors from the runs between neighbouring places.

    Args:
        each: seconds of the runs by phase, as of `phases_of`.
        least: the same, the least over all kinds: what a run has in its forward program may be in
            that of its gradients in a longer stage, the more so the less is computed again.
        held: bytes of the runs.
        sent: whether all gradients of a run lead to values from before a stage, [first run, run].
        count: number of micro-batches.
    """
    n = len(each) + 1
    empty = np.tril(np.ones((n, n), dtype=bool))
    forward, floor, once, early, late = (_runs(each[:, k]) for k in (0, 2, 3, 4, 6))
    begun, rest, weight = _runs(least[:, 4]), _runs(least[:, 5] + least[:, 6]), _runs(least[:, 6])
    weight[0] = rest[0]  # the first stage sends no gradients
    back, early_inward, inward = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    back[:-1, 1:] = np.cumsum(sent * each[:, 1], axis=1)
    early_inward[:-1, 1:] = np.cumsum(sent * each[:, 5], axis=1)
    inward[:-1, 1:] = np.cumsum(sent * least[:, 5], axis=1)
    early = early + early_inward
    passes = np.where(empty, np.inf, floor)
    return KindFloors(
        forward, back, floor, passes, begun, rest, inward, weight,
        np.where(empty, np.inf, early), early, late, once, count * passes + once, tuple(held),
    )  # fmt: skip


def phases_of(units: Sequence[Unit], shared: Sequence[bool], size: int) -> Floats:
    """Least seconds of the runs between neighbouring places, [run, phase].

    Args:
        units: the runs.
        shared: whether others read parameters of a run too.
        size: devices.
    """
    return np.array([
        (unit.shared if is_shared else unit.phases)[size]
        for unit, is_shared in zip(units, shared, strict=True)
    ])  # fmt: skip


def raise_bound(
    seconds: Floats, floor_s: Floats, at: Run, rows: Sequence[int], bound_s: float, border_s: float
) -> None:
    """Raises the bound of a run, and of those that contain it, by their ops outside of it.

    Args:
        seconds: bounds of all runs.
        floor_s: the same by ops alone.
        at: the run.
        rows: first places of the runs that contain it.
        bound_s: its bound [s].
        border_s: most that ops save at its borders [s].
    """
    i, j = at
    around = np.ix_(rows, range(j, seconds.shape[1]))
    more_s = floor_s[around] - floor_s[i, j] - border_s
    seconds[around] = np.maximum(seconds[around], bound_s + more_s)
    seconds[i, j] = max(seconds[i, j], bound_s)


def _runs(each: Floats) -> Floats:
    """Sums over all runs of neighbours, [first place, last place]."""
    sums = np.concatenate(((0.0,), np.cumsum(each)))
    return np.maximum(sums[None, :] - sums[:, None], 0.0)
