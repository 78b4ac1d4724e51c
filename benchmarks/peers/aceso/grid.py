"""Megatron's grid in Aceso's cost: equal stages, one pair of degrees, all recomputed or none."""

from __future__ import annotations

import itertools

from planner.pipeline.published.readers.aceso import HEAD, LAYER, Database

from .cost import OpPlan, OpStage, price_ops


def grid_ops(
    database: Database, *, devices: int, devices_per_host: int, memory_bytes: float, batch: int
) -> OpPlan | None:
    """The best point of the grid; None if none fits."""
    best: tuple[float, OpPlan] | None = None
    for plan in _points(database, devices, devices_per_host, batch):
        cost = price_ops(database, plan, batch=batch, devices_per_host=devices_per_host)
        if max(cost.peak_bytes) < memory_bytes and (best is None or cost.step_s < best[0]):
            best = cost.step_s, plan
    return None if best is None else best[1]


def _points(database: Database, devices: int, per_host: int, batch: int) -> list[OpPlan]:
    measured = sorted({b for b, _ in database.table})
    found: list[OpPlan] = []
    for stages in range(1, devices + 1):
        if database.layers % stages:
            continue
        for t in sorted({t for _, t in database.table}):
            d = devices // (stages * t)
            if stages * t * d != devices or t > per_host:
                continue
            for size in measured:
                if size % d == 0 and size // d in measured and batch % size == 0:
                    found += [_plan(database, stages, d, t, size, again) for again in (True, False)]
    return found


def _plan(database: Database, stages: int, d: int, t: int, size: int, again: bool) -> OpPlan:
    count = len(database.ops)
    each = database.layers // stages * LAYER
    cuts = [0, *(HEAD + each * s for s in range(1, stages)), count]
    flags = [again] * count
    flags[0] = flags[-1] = False
    made = [OpStage(a, b, d, t, tuple(flags[a:b])) for a, b in itertools.pairwise(cuts)]
    return OpPlan(tuple(made), size)
