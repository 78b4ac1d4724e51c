"""Placements that no registered schedule has."""

from __future__ import annotations

from collections.abc import Sequence

from planner.pipeline.schedule import Placement


def placed(
    device: Sequence[int], edges: Sequence[tuple[int, int]], *, devices: int | None = None
) -> Placement:
    """Any acyclic flow of chunks (branches, shared devices), every one visited by all."""
    chunks = tuple(range(len(device)))
    count = max(device, default=-1) + 1 if devices is None else devices
    return Placement(count, tuple(device), chunks, tuple(edges), (chunks,))
