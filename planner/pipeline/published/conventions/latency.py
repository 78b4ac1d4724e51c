"""Synchronous pipelines: sum of the stages, the slowest one M - 1 times more, then the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..convention import Convention, Floats, StageTerms

# (per micro-batch, once in the sum, once at the end) seconds of a stage
Terms = Callable[[StageTerms, int], tuple[Floats, Floats, Floats]]


def alpa_terms(stage: StageTerms, microbatches: int) -> tuple[Floats, Floats, Floats]:
    """Gradient exchange spread over micro-batches, no transfers: T = sum t + (M - 1) max t."""
    each = stage.seconds + stage.sync_s / microbatches
    return each, each, np.zeros_like(each)


def amp_terms(stage: StageTerms, microbatches: int) -> tuple[Floats, Floats, Floats]:
    """T = (M - 1) max t + sum t + sum e + max sync."""
    return stage.seconds, stage.seconds + stage.leave_s, stage.sync_s


def flush_terms(stage: StageTerms, microbatches: int) -> tuple[Floats, Floats, Floats]:
    """The same with a transfer each way, which bounds the pace as compute does.

    t = max(f + b, 2 e); T = (M - 1) max t + sum (f + b + 2 e) + max late.
    """
    moved = 2 * stage.leave_s
    return np.maximum(stage.seconds, moved), stage.seconds + moved, stage.late_s


def _latency(name: str, source: str, terms: Terms, *, averages: bool) -> Convention:
    def step_s(stages: Sequence[StageTerms], microbatches: int) -> float:
        rows = [tuple(float(v) for v in terms(stage, microbatches)) for stage in stages]
        slowest, last = max(row[0] for row in rows), max(row[2] for row in rows)
        return (microbatches - 1) * slowest + sum(row[1] for row in rows) + last

    def extend(labels: Floats, stage: StageTerms, microbatches: int) -> Floats:
        each, once, end = terms(stage, microbatches)
        return np.stack(
            [np.maximum(labels[:, 0], each), labels[:, 1] + once, np.maximum(labels[:, 2], end)],
            axis=1,
        )

    def value(labels: Floats, microbatches: int) -> Floats:
        return (microbatches - 1) * labels[:, 0] + labels[:, 1] + labels[:, 2]

    return Convention(
        name, source, "1f1b", by_replicas=False, stashes=False, averages=averages, divides=False,
        step_s=step_s, seconds=None, start=(0.0, 0.0, 0.0), extend=extend, value=value,
        bound=value,
    )  # fmt: skip


ALPA = _latency("alpa", "Zheng et al., OSDI 2022, section 5.2", alpa_terms, averages=False)
AMP = _latency("amp", "Li et al., NeurIPS 2022, section 3.2", amp_terms, averages=True)
FLUSH = _latency(
    "flush", "the common form of Alpa's and AMP's, transfers and overlapped exchange included",
    flush_terms, averages=False,
)  # fmt: skip
