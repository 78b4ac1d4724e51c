"""Strategies of every layer, everything else, micro-batches and stages under Galvatron's cost.

Layers are equal, so a stage is how many layers run each way. Groups are the same in all of a stage,
so that nothing is resharded between its layers; all counts of the ways to hold weights and to
recompute are compared, which is exact where Galvatron rounds nothing away.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.pipeline.published.readers.galvatron import LayerProfile

from .cost import (
    Setting,
    Strategy,
    buffer_mb,
    layer_mb,
    layer_s,
    other_mb,
    other_s,
    pipeline_s,
    usable_mb,
)

MOST_COMBINATIONS = 4096


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Layers of a stage by strategy, its seconds without and with exchange, and its MB."""

    counts: tuple[tuple[Strategy, int], ...]
    computed_s: float
    exchanged_s: float
    memory_mb: int


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The whole plan."""

    step_s: float
    setting: Setting
    other: Strategy
    stages: tuple[StageChoice, ...]


def search_layers(
    profile: LayerProfile, *, memory_mb: int, batch: int, zero: str = "zero2"
) -> LayerPlan | None:
    """The cheapest plan that fits; None if none does.

    Args:
        profile: of the model and the devices it was taken on.
        memory_mb: of a device.
        batch: samples of a step.
        zero: how weights are held where they are not fully sharded.
    """
    best: LayerPlan | None = None
    for setting in _settings(profile, batch):
        for other in _strategies(profile, setting, zero, again=False):
            for plan in _plans(profile, setting, other, usable_mb(memory_mb), zero):
                if best is None or plan.step_s < best.step_s:
                    best = plan
    return best


def _settings(profile: LayerProfile, batch: int) -> Iterator[Setting]:
    stages = 1
    while stages <= min(profile.devices, profile.layers):
        if stages == 1 or stages in profile.p2p_ms_per_mb:
            for chunks in range(stages, batch + 1):
                if batch % chunks == 0:
                    yield Setting(batch, chunks, stages)
        stages *= 2


def _strategies(
    profile: LayerProfile, setting: Setting, zero: str, *, again: bool
) -> list[Strategy]:
    """Ways to run on a stage's devices; recomputed ones too if `again`."""
    devices = profile.devices // setting.stages
    found: list[Strategy] = []
    for group in sorted(profile.activation_mb):
        data = devices // group
        if data * group != devices or setting.batch // setting.chunks < data:
            continue
        for sequence in (False, True) if group > 1 else (False,):
            for kind in ("ddp",) if data == 1 else (zero, "zero3"):
                for recompute in (False, True) if again else (False,):
                    found.append(Strategy(group, sequence, data, kind, recompute))
    return found


def _plans(
    profile: LayerProfile, setting: Setting, other: Strategy, room_mb: int, zero: str
) -> Iterator[LayerPlan]:
    ways = _strategies(profile, setting, zero, again=True)
    groups: dict[tuple[int, bool], list[Strategy]] = {}
    for way in ways:
        groups.setdefault((way.group, way.sequence), []).append(way)
    alone_s, alone_mb = other_s(profile, setting, other), other_mb(profile, setting, other)
    for division in divisions(profile.layers, setting.stages):
        fronts: list[list[StageChoice]] = []
        for stage, layers in enumerate(division):
            front: list[StageChoice] = []
            for (group, sequence), kinds in groups.items():
                # The buffer serves everything else too, whichever group is the larger.
                largest = max(1 if sequence else group, other.tensor)
                fixed = alone_mb[stage]
                if largest > 1 or not (sequence or other.sequence):
                    devices = profile.devices
                    fixed += buffer_mb(profile, setting, devices, max(group, other.group))
                front += _front(profile, setting, stage, layers, kinds, room_mb - fixed, fixed)
            fronts.append(_trimmed(front))
        if all(fronts):
            yield _best(setting, other, alone_s, fronts)


def divisions(layers: int, stages: int) -> list[tuple[int, ...]]:
    """Even layers per stage, and every way to move up to two between neighbours' shares."""
    size, more = divmod(layers, stages)
    even = [size + (s < more) for s in range(stages)]
    if stages == 1:
        return [tuple(even)]
    if stages == 2:
        return [(first, layers - first) for first in range(1, layers)]
    shifts = range(-2, 3) if stages <= 4 else range(-1, 2)
    found = {tuple(even)}
    for moved in itertools.product(shifts, repeat=stages - 1):
        parts = [a + b for a, b in zip(even, (*moved, -sum(moved)), strict=True)]
        if min(parts) > 0 and abs(sum(moved)) <= 2:
            found.add(tuple(parts))
    return sorted(found)


def _front(
    profile: LayerProfile, setting: Setting, stage: int, layers: int, kinds: list[Strategy],
    room_mb: int, fixed_mb: int,
) -> list[StageChoice]:  # fmt: skip
    """Choices of one group that fit and that no other beats in both numbers."""
    exchanged, computed = (
        np.array(x) for x in zip(*(layer_s(profile, setting, k) for k in kinds), strict=True)
    )
    memory = np.array([layer_mb(profile, setting, k, stage) for k in kinds])
    counts = _counts(layers, len(kinds))
    held = counts @ memory
    fits = held <= room_mb
    if not fits.any():
        return []
    counts, held = counts[fits], held[fits]
    both = np.stack([counts @ computed, counts @ exchanged], axis=1)
    found: list[StageChoice] = []
    lowest = np.inf
    for at in np.lexsort((both[:, 1], both[:, 0])).tolist():
        if both[at, 1] < lowest:
            lowest = both[at, 1]
            chosen = tuple((k, int(c)) for k, c in zip(kinds, counts[at], strict=True) if c)
            used = int(held[at]) + fixed_mb
            found.append(StageChoice(chosen, float(both[at, 0]), float(both[at, 1]), used))
    return found


def _counts(layers: int, kinds: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Every way to give each of the layers one of the kinds."""
    bars = itertools.combinations(range(layers + kinds - 1), kinds - 1)
    cuts = np.array(list(bars), dtype=np.int64).reshape(-1, kinds - 1)
    edges = np.concatenate(
        [np.full((len(cuts), 1), -1), cuts, np.full((len(cuts), 1), layers + kinds - 1)], axis=1
    )
    return np.diff(edges, axis=1) - 1


def _trimmed(front: list[StageChoice]) -> list[StageChoice]:
    kept: list[StageChoice] = []
    for choice in sorted(front, key=lambda c: (c.computed_s, c.exchanged_s)):
        if not kept or choice.exchanged_s < kept[-1].exchanged_s:
            kept.append(choice)
    return kept


def _best(
    setting: Setting, other: Strategy, alone_s: list[float], fronts: list[list[StageChoice]]
) -> LayerPlan:
    size = int(np.prod([len(front) for front in fronts], dtype=float))
    options = fronts if size <= MOST_COMBINATIONS else [front[:1] for front in fronts]
    best: LayerPlan | None = None
    for stages in itertools.product(*options):
        computed = [s.computed_s + extra for s, extra in zip(stages, alone_s, strict=True)]
        step = pipeline_s(computed, [s.exchanged_s for s in stages], setting.chunks)
        if best is None or step < best.step_s:
            best = LayerPlan(step, setting, other, stages)
    assert best is not None
    return best
