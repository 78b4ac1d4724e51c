"""Zero-bubble schedules on a chain: the weight gradient waits and fills the idle time."""

from __future__ import annotations

from .placement import chain
from .table import Schedule, Table, table_of
from .task import Kind


def zero_bubble_h1(stages: int, microbatches: int) -> Schedule:
    """ZB-H1: the warm-up of 1F1B, weight gradients of stage i late by i micro-batches.

    Idle time of a device (p - 1)(t_f + t_b - t_w) for gradients of input t_b and weight t_w; every
    stage keeps at most p micro-batches, as the first of 1F1B does.

    Source: Qi et al., Zero bubble pipeline parallelism, ICLR 2024, section 2.
    """
    tables = [
        one_stage(stage, microbatches, ahead=stages - stage, late=stage) for stage in range(stages)
    ]
    return Schedule("zb-h1", chain(stages), microbatches, tuple(tables))


def zero_bubble_h2(stages: int, microbatches: int) -> Schedule:
    """ZB-H2: twice the warm-up, weight gradients of stage i late by 2i micro-batches.

    Idle time of a device (p - 1)(t_f + t_b - 2 t_w) between its first task and its last; every
    stage keeps at most 2p - 1 micro-batches. Stages end one after another, so that the next step
    can begin on the first while the last still works.

    Source: Qi et al., Zero bubble pipeline parallelism, ICLR 2024, section 2.
    """
    tables = [
        one_stage(stage, microbatches, ahead=2 * (stages - stage) - 1, late=2 * stage)
        for stage in range(stages)
    ]
    return Schedule("zb-h2", chain(stages), microbatches, tuple(tables))


def one_stage(chunk: int, microbatches: int, *, ahead: int, late: int) -> Table:
    """`ahead` forwards, then input gradient, weight gradient of `late` micro-batches ago, forward.

    Weight gradients that remain come last.
    """
    head = min(ahead, microbatches)
    rows = [(Kind.FORWARD, chunk, m) for m in range(head)]
    for m in range(microbatches):
        rows.append((Kind.INPUT_GRADIENT, chunk, m))
        if m >= late:
            rows.append((Kind.WEIGHT_GRADIENT, chunk, m - late))
        if head + m < microbatches:
            rows.append((Kind.FORWARD, chunk, head + m))
    first = max(microbatches - late, 0)
    rows += [(Kind.WEIGHT_GRADIENT, chunk, m) for m in range(first, microbatches)]
    return table_of(rows)
