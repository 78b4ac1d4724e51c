"""1F1B: after a warm-up of forwards, one forward and one backward in turn."""

from __future__ import annotations

from .placement import chain
from .table import Schedule, Table, table_of
from .task import Kind


def one_f_one_b(
    stages: int, microbatches: int, *, in_flight: int | None = None, eager: bool = False
) -> Schedule:
    """Stage i of p starts with K_i forwards and then alternates.

    K_i = min(p - i, in_flight) for transfers that are short beside compute (policy A of DAPPLE,
    PipeDream's steady state, Megatron); K_i = min(2(p - i) - 1, in_flight) for transfers about
    as long as compute (policy B). Stage i keeps K_i micro-batches of activations.

    Args:
        stages: devices p, one chunk on each.
        microbatches: in a step.
        in_flight: most micro-batches that a device may hold; no limit if None.
        eager: policy B.

    Source: Fan et al., DAPPLE, PPoPP 2021, section 3.2; Narayanan et al., PipeDream, SOSP 2019.
    """
    name = "1f1b-eager" if eager else "1f1b"
    tables = [
        one_stage(min(2 * left - 1 if eager else left, in_flight or left * 2), microbatches, stage)
        for stage, left in enumerate(range(stages, 0, -1))
    ]
    return Schedule(name, chain(stages), microbatches, tuple(tables))


def one_f_one_b_eager(stages: int, microbatches: int, *, in_flight: int | None = None) -> Schedule:
    """1F1B with DAPPLE's policy B: twice the warm-up, to hide transfers."""
    return one_f_one_b(stages, microbatches, in_flight=in_flight, eager=True)


def one_stage(warm_up: int, microbatches: int, chunk: int) -> Table:
    """`warm_up` forwards, then backwards and forwards in turn."""
    head = min(warm_up, microbatches)
    rows = [(Kind.FORWARD, chunk, m) for m in range(head)]
    for m in range(microbatches):
        rows.append((Kind.BACKWARD, chunk, m))
        if head + m < microbatches:
            rows.append((Kind.FORWARD, chunk, head + m))
    return table_of(rows)
