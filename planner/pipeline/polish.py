"""Stages of a pipeline that is kept, planned with more mesh axes."""

from __future__ import annotations

from .trials import WORTH, PlannedPipeline, Trials


def polished(best: PlannedPipeline, trials: Trials) -> PlannedPipeline:
    """Plans the slowest stages with more mesh axes, as long as the step gets faster.

    Args:
        best: the pipeline.
        trials: the search that found it.
    """
    shape, plans, prices = best.ranked.shape, list(best.plans), list(best.prices)
    tried: set[int] = set()
    while True:
        seconds = [p.paced_s(k) for p, k in zip(prices, shape.recompute, strict=True)]
        s = max(range(len(seconds)), key=lambda s: seconds[s])
        if id(plans[s]) in tried:
            break
        tried.add(id(plans[s]))
        below_s = plans[s].step_s * (1 - WORTH)
        found = trials.planner.better(best.bound.cut, shape, s, best.flight[s], below_s)
        if found is None:
            break
        for k, old in enumerate(plans):
            if old is plans[s] and best.flight[k] <= best.flight[s]:
                plans[k], prices[k] = found
    return trials.ranked(best.bound, shape, plans, prices, best.across, best.flight) or best
