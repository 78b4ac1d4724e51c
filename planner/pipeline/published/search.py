"""The best plan of a space under a convention, by the search that is exact for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from .convention import Convention
from .label_search import search_labels
from .machine import Machine
from .price import price
from .problem import PipelinePlan, Problem
from .stage_space import Space
from .stage_tables import Tables
from .threshold_search import search_threshold


def search(
    problem: Problem,
    convention: Convention,
    space: Space,
    *,
    machines: Iterable[Machine] | None = None,
    below_s: float = np.inf,
) -> PipelinePlan | None:
    """The cheapest plan that fits.

    Args:
        problem: layers, devices, batch and micro-batches.
        convention: whose formula is minimised.
        space: which stages may be formed.
        machines: orders of the hosts to try; the problem's own if not given.
        below_s: step seconds of a plan that is known; only cheaper or equal ones are of interest.

    Returns:
        None if nothing fits, or nothing is below.
    """
    best: PipelinePlan | None = None
    tables = Tables(problem, convention, space.degrees(problem), space.recompute)
    for machine in machines or (problem.machine,):
        limited = space.stages is not None or space.all_devices
        flat = convention.seconds is not None and machine.is_flat and not limited
        find = search_threshold if flat else search_labels
        found = find(tables, machine, space, below_s=below_s)
        if found is None:
            continue
        cost = price(problem, found, convention).step_s
        if best is None or cost < below_s:
            best, below_s = found, cost
    return best


def microbatch_counts(problem: Problem) -> list[int]:
    """Divisors of the batch that leave micro-batches of the profiled size or larger, most first."""
    least = min(problem.graph.batch, problem.batch)
    divisors = [m for m in range(1, problem.batch + 1) if problem.batch % m == 0]
    return [m for m in reversed(divisors) if problem.batch // m >= least]


def over_microbatches(
    problem: Problem,
    convention: Convention,
    space: Space,
    *,
    counts: Iterable[int],
    machines: Iterable[Machine] | None = None,
    known: Iterable[PipelinePlan] = (),
) -> PipelinePlan | None:
    """The cheapest plan over several numbers of micro-batches; `known` plans are to be beaten."""
    tried = tuple(machines) if machines is not None else None
    priced = [(price(problem, plan, convention), plan) for plan in known]
    fitting = [(found.step_s, plan) for found, plan in priced if found.fits]
    below_s, best = min(fitting, key=lambda item: item[0], default=(np.inf, None))
    for count in counts:
        cut = replace(problem, microbatches=count)
        found = search(cut, convention, space, machines=tried, below_s=below_s)
        if found is None:
            continue
        cost = price(problem, found, convention).step_s
        if best is None or cost <= below_s:
            best, below_s = found, cost
    return best
