"""Random flows of chunks, to be scheduled."""

from __future__ import annotations

import numpy as np

from benchmarks.schedule_search.flows import placed
from planner.pipeline.schedule import Placement, StageCosts


def random_problem(seed: int) -> tuple[Placement, StageCosts, int]:
    """A random flow of chunks on few devices, with whole seconds."""
    rng = np.random.default_rng(seed)
    chunks, devices = int(rng.integers(2, 7)), int(rng.integers(1, 4))
    edges = [
        (a, b)
        for b in range(1, chunks)
        for a in sorted(set(rng.integers(0, b, size=rng.integers(1, 3)).tolist()))
    ]
    placement = placed(rng.integers(0, devices, chunks).tolist(), edges, devices=devices)

    def some(low: int) -> tuple[float, ...]:
        return tuple(rng.integers(low, 6, chunks).astype(float).tolist())

    costs = StageCosts(
        forward_s=some(1), input_gradient_s=some(1), weight_gradient_s=some(0),
        activation_bytes=some(1), weight_input_bytes=some(0), weight_bytes=some(0),
    )  # fmt: skip
    return placement, costs, int(rng.integers(1, 12))
