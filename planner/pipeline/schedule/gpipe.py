"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from .placement import chain
from .table import Schedule, table_of
from .task import Kind


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Every stage runs all forwards and then all backwards, last micro-batch first.

    Every stage keeps the activations of all micro-batches.

    Source: Huang et al., GPipe, NeurIPS 2019, section 2.
    """
    order = range(microbatches)
    tables = [
        table_of(
            [(Kind.FORWARD, s, m) for m in order] + [(Kind.BACKWARD, s, m) for m in reversed(order)]
        )
        for s in range(stages)
    ]
    return Schedule("gpipe", chain(stages), microbatches, tuple(tables))
