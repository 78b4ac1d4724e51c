"""Galvatron's cost of one choice: a layer, everything else, and the pipeline of both.

    layer:    forward + max-like overlap of backward and gradient exchange + group exchange
    pipeline: sum c + (chunks - 1) c_last, or the first stage's if longer, plus exchange left over

Source: Miao et al., "Galvatron", VLDB 2023, section 4.2, and its released cost model. Units are the
profiler's, milliseconds and MB; results are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.pipeline.published.readers.galvatron import BACKWARD_OVER_FORWARD, MS, LayerProfile

CONTEXT_MB = 1024.0
SHARE_OF_CACHE = 0.2
ZEROS = ("ddp", "zero2", "zero3")


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a layer, or everything else, runs on the devices of a stage.

    group: tensor- or sequence-parallel degree.
    sequence: whether the group splits sequences (Ulysses) rather than weights.
    data: replicas.
    zero: `ddp`, `zero2` or `zero3`.
    again: whether the layer is recomputed.
    """

    group: int
    sequence: bool
    data: int
    zero: str
    again: bool = False

    @property
    def tensor(self) -> int:
        """Ways the weights are split."""
        return 1 if self.sequence else self.group

    @property
    def sharers(self) -> int:
        """Devices that hold the same weights."""
        return self.data * (self.group if self.sequence else 1)


@dataclass(frozen=True, slots=True)
class Setting:
    """The batch and its cut: samples, micro-batches and stages."""

    batch: int
    chunks: int
    stages: int

    def local(self, strategy: Strategy) -> int:
        """Samples of a micro-batch on a replica."""
        return self.batch // self.chunks // strategy.data


def layer_s(profile: LayerProfile, setting: Setting, strategy: Strategy) -> tuple[float, float]:
    """Seconds of a layer and micro-batch, with and without gradient exchange."""
    samples = setting.local(strategy)
    slope, start = profile.layer_ms
    forward = slope * samples / strategy.group + start
    backward = forward * BACKWARD_OVER_FORWARD + (forward if strategy.again else 0.0)
    n = strategy.sharers
    sent = (n - 1) / n * profile.parameter_mb / strategy.tensor
    rate = profile.link(n, neighbours=strategy.tensor == 1)
    group = _group_ms(profile, samples, strategy)
    found: list[float] = []
    for exchange in (sent, 0.0):
        total = forward + group
        total += _overlapped(profile, backward, exchange, rate) if strategy.data > 1 else backward
        if strategy.zero == "zero3":
            total += sent / 2 * rate
        if setting.stages > 1:
            moved = setting.stages * 2 * profile.message_mb(samples)
            total += (
                moved * profile.of(profile.p2p_ms_per_mb, setting.stages, "stages") / profile.layers
            )
        found.append(total * MS)
    return found[0], found[1]


def _overlapped(profile: LayerProfile, backward: float, sent: float, rate: float) -> float:
    """Backward beside the exchange, both slower by the overlap factor while both run."""
    slow = profile.overlap
    if sent * rate > backward:
        return backward * slow + (sent * rate - backward)
    return sent * rate * slow + (backward - sent * rate)


def _group_ms(profile: LayerProfile, samples: int, strategy: Strategy) -> float:
    if strategy.group == 1:
        return 0.0
    count, table = (4, profile.exchange) if strategy.sequence else (6, profile.gather)
    again = 1.5 if strategy.again else 1.0
    return (
        profile.of(table, strategy.group, "devices").ms(profile.message_mb(samples)) * count * again
    )


def state_share(setting: Setting, strategy: Strategy) -> float:
    """Part of the model state that a device holds."""
    part = 1 / strategy.sharers + 0.003
    if strategy.zero == "zero3":
        return part if setting.chunks == 1 else 7 / 8 * part + 1 / 8
    if strategy.zero == "zero2":
        return 7 / 8 * part + 1 / 8 if setting.chunks == 1 else 6 / 8 * part + 2 / 8
    return 1.0


def layer_mb(profile: LayerProfile, setting: Setting, strategy: Strategy, stage: int) -> int:
    """Memory of a layer in a stage, rounded up as the search does."""
    state = 4 * profile.parameter_mb / strategy.tensor * state_share(setting, strategy)
    samples = (setting.stages - stage) * setting.local(strategy)
    kept = profile.of(profile.activation_mb, strategy.group, "a degree")
    if strategy.again:
        kept = profile.checkpoint_mb / strategy.group
    return math.ceil(state + kept * samples)


def other_s(profile: LayerProfile, setting: Setting, strategy: Strategy) -> list[float]:
    """Seconds of everything else by stage, without gradient exchange."""
    slope, start = profile.other_ms
    samples = setting.local(strategy)
    forward = slope * samples / strategy.group + start
    n = strategy.sharers
    rate = profile.link(n, neighbours=strategy.tensor == 1) * (n - 1) / n
    gather = 0.0
    if strategy.tensor > 1:
        gather = profile.of(profile.gather, strategy.tensor, "devices").ms(
            profile.message_mb(samples)
        )
    once = setting.stages == 1
    found = [0.0] * setting.stages
    for place, key in ((0, "off"),) if once else ((0, "first"), (-1, "last")):
        share = forward if once else forward / 2
        size = profile.of(profile.other_state_mb[key], strategy.tensor, "a degree") / 8
        sent = size * rate * (0.5 if strategy.zero == "zero3" else 0.0)
        both = _beside(profile, sent, share)
        both += _beside(profile, sent, share * BACKWARD_OVER_FORWARD)
        found[place] = (both + gather * (2 if once else 1)) * MS
    return found


def _beside(profile: LayerProfile, sent_ms: float, compute_ms: float) -> float:
    slow = compute_ms * profile.overlap
    return max(sent_ms, sent_ms + (slow - sent_ms) / profile.overlap)


def other_mb(profile: LayerProfile, setting: Setting, strategy: Strategy) -> list[int]:
    """Memory of everything else by stage."""
    share = state_share(setting, strategy)
    samples = setting.local(strategy)
    state, kept = profile.other_state_mb, profile.other_activation_mb

    def size(key: str, flight: int) -> float:
        held = profile.of(kept[key], strategy.group, "a degree") * samples * flight
        return profile.of(state[key], strategy.tensor, "a degree") * share + held

    if setting.stages == 1:
        return [math.ceil(size("off", 1) + CONTEXT_MB)]
    middle = [math.ceil(CONTEXT_MB)] * (setting.stages - 2)
    first, last = size("first", setting.stages), size("last", 1)
    return [math.ceil(first + CONTEXT_MB), *middle, math.ceil(last + CONTEXT_MB)]


def buffer_mb(profile: LayerProfile, setting: Setting, devices: int, group: int) -> int:
    """The buffer that tensor-parallel groups of up to `group` devices gather into."""
    replicas = devices // setting.stages // group
    return int(profile.message_mb(setting.batch / setting.chunks / replicas))


def usable_mb(memory_mb: int) -> int:
    """Memory less what the allocator's cache is taken to need on large devices."""
    return memory_mb - int(memory_mb * SHARE_OF_CACHE) if memory_mb // 1024 > 20 else memory_mb


def pipeline_s(computed: Sequence[float], exchanged: Sequence[float], chunks: int) -> float:
    """Seconds of a step.

    The published form counts the last stage and the first only, since its stages are equal; with
    unequal ones it can be passed by any that is slower, so the common form is a floor here:
    sum c + (chunks - 1) max c.

    Args:
        computed: of each stage and micro-batch, everything else in, gradient exchange out.
        exchanged: of each stage's layers, gradient exchange in.
        chunks: micro-batches.
    """
    stages = len(computed)
    step = sum(computed) + computed[-1] * (chunks - 1)
    rest = sum(computed[1:])
    warm = min(stages - 1, chunks - 1) * computed[0]
    ends = max(warm / 3, rest / 3) + max(warm * 2 / 3, rest * 2 / 3)
    step = max(step, ends + computed[0] * max(0, chunks + 1 - stages))
    step = max(step, sum(computed) + max(computed) * (chunks - 1))
    hidden = 0.0
    late = 0.0
    for own, with_exchange in zip(computed, exchanged, strict=True):
        hidden += own
        late = max(late, with_exchange - hidden)
    return step + late
