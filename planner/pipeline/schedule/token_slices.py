"""Token slices: parts of one sequence follow each other through the pipeline."""

from __future__ import annotations

from .placement import chain
from .table import Schedule, table_of
from .task import Kind


def token_slices(stages: int, microbatches: int, *, slices: int = 4) -> Schedule:
    """All forwards, slice by slice, then all backwards, last slice first.

    With causal attention a slice needs only those before it. Forward time
    sum_i t_i + (p - 1) max_i t_i over all slices i of all micro-batches.

    Args:
        stages: devices p, one chunk on each.
        microbatches: in a step.
        slices: of each micro-batch along the sequence; `StageCosts.slice_share` may make them
            unequal.

    Source: Li et al., TeraPipe, ICML 2021, section 3.
    """
    order = [(m, j) for m in range(microbatches) for j in range(slices)]
    tables = [
        table_of(
            [(Kind.FORWARD, s, m, j) for m, j in order]
            + [(Kind.BACKWARD, s, m, j) for m, j in reversed(order)]
        )
        for s in range(stages)
    ]
    return Schedule("token-slices", chain(stages), microbatches, tuple(tables), slices=slices)
