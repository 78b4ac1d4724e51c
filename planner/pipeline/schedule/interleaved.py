"""Interleaved 1F1B: several chunks on each device, for a shorter fill and drain."""

from __future__ import annotations

from ...common.errors import PlanError
from .placement import looped
from .table import Schedule, Table, table_of
from .task import Kind


def interleaved(stages: int, microbatches: int, *, chunks: int = 2) -> Schedule:
    """Device i of p works through groups of p micro-batches, chunk by chunk.

    It starts with 2(p - i - 1) + (chunks - 1) p forwards, then alternates. The bubble is that of
    1F1B divided by `chunks`, transfers are `chunks` times as many; device 0 keeps activations of
    chunks * p + p - 1 chunks.

    Args:
        stages: devices p.
        microbatches: in a step; a multiple of p.
        chunks: on each device, chunk c on device c mod p.

    Raises:
        PlanError: if p does not divide the micro-batches.

    Source: Narayanan et al., Efficient large-scale language model training, SC 2021, section 2.2.2.
    """
    if chunks < 1 or microbatches % stages:
        raise PlanError(
            f"{microbatches} micro-batches on {stages} stages with {chunks} chunks",
            kind="bad-schedule", where="interleaved",
            remedy="use a number of micro-batches that the stages divide, and 1 or more chunks",
        )  # fmt: skip
    tables = [_one_device(stages, microbatches, chunks, device) for device in range(stages)]
    return Schedule("interleaved", looped(stages, chunks), microbatches, tuple(tables))


def _one_device(stages: int, microbatches: int, chunks: int, device: int) -> Table:
    units = [
        (local, first + m)
        for first in range(0, microbatches, stages)
        for local in range(chunks)
        for m in range(stages)
    ]
    forward = [(Kind.FORWARD, local * stages + device, m) for local, m in units]
    backward = [(Kind.BACKWARD, (chunks - 1 - local) * stages + device, m) for local, m in units]
    ahead = min(2 * (stages - device - 1) + (chunks - 1) * stages, len(units))
    rows = forward[:ahead]
    for i, task in enumerate(backward):
        rows += forward[ahead + i : ahead + i + 1]
        rows.append(task)
    return table_of(rows)
