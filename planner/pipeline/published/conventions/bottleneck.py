"""Asynchronous pipelines: the slowest stage sets the pace, filling and draining are free."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..convention import Convention, Floats, StageTerms

Seconds = Callable[[StageTerms, int], Floats]


def piper_s(stage: StageTerms, microbatches: int) -> Floats:
    """Seconds a micro-batch costs a stage of d replicas.

    t = p / d + (2 sum c / d + 4 (d - 1) w / (d N)) / B, with c over all edges that enter or leave.
    """
    d = stage.replicas
    sync = 4 * (d - 1) * stage.weight_bytes / (d * microbatches)
    return stage.seconds + (2 * stage.edge_bytes / d + sync) / stage.ring_bytes_per_s


def pipedream_overlap_s(stage: StageTerms, microbatches: int) -> Floats:
    """Seconds a micro-batch costs a stage of d replicas.

    t = (p + 4 (d - 1) w / (d B)) / d: weights are exchanged after each micro-batch. Transfers
    between stages are taken to be hidden, as the released optimizer does unless it is told how
    activations are compressed.
    """
    d = stage.replicas
    sync = 4 * (d - 1) * stage.weight_bytes / (d * stage.ring_bytes_per_s)
    return stage.seconds + sync / d


def pipedream_s(stage: StageTerms, microbatches: int) -> Floats:
    """The same with transfers: t = max(t, 2 a / B of the edges that enter, of those that leave)."""
    d = stage.replicas
    moved = 2 * np.maximum(stage.enter_s, stage.leave_s) / d
    return np.maximum(pipedream_overlap_s(stage, microbatches), moved)


def _bottleneck(
    name: str, source: str, seconds: Seconds, *, stashes: bool, divides: bool
) -> Convention:
    def step_s(stages: Sequence[StageTerms], microbatches: int) -> float:
        return microbatches * max(float(seconds(stage, microbatches)) for stage in stages)

    def extend(labels: Floats, stage: StageTerms, microbatches: int) -> Floats:
        return np.maximum(labels, seconds(stage, microbatches)[:, None])

    def value(labels: Floats, microbatches: int) -> Floats:
        return microbatches * labels[:, 0]

    return Convention(
        name, source, "1f1b-async", by_replicas=True, stashes=stashes, averages=False,
        divides=divides, step_s=step_s, seconds=seconds, start=(0.0,), extend=extend, value=value,
        bound=value,
    )  # fmt: skip


PIPER = _bottleneck(
    "piper", "Tarnawski et al., NeurIPS 2021, section 3, and its released code", piper_s,
    stashes=False, divides=True,
)  # fmt: skip
PIPEDREAM = _bottleneck(
    "pipedream",
    "Narayanan et al., SOSP 2019, section 3.1",
    pipedream_s,
    stashes=True,
    divides=False,
)
PIPEDREAM_OVERLAP = _bottleneck(
    "pipedream-overlap", "its released optimizer, where transfers are not counted",
    pipedream_overlap_s, stashes=True, divides=False,
)  # fmt: skip
