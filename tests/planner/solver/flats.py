"""Every choice of a small flat problem."""

from __future__ import annotations

import itertools
import math

import numpy as np

from planner.solver.arrays import Flat, Ints, flatten_problem
from planner.solver.problem import Floats
from planner.solver.reduce.remap import keeping, remap
from tests.planner.solver.problems import instance


def choices(flat: Flat) -> Ints:
    """One row for each choice."""
    ranges = [range(int(n)) for n in flat.sizes]
    found = list(itertools.product(*ranges))
    return np.array(found, dtype=np.int64).reshape(len(found), flat.size)


def costs(flat: Flat) -> Floats:
    """Cost of every choice, infinite where it does not fit."""
    found = [flat.cost_of(c) if flat.fits(c) else math.inf for c in choices(flat)]
    return np.array(found) if flat.limit.min(initial=0.0) >= 0.0 else np.full(1, math.inf)


def best(flat: Flat) -> float:
    return float(costs(flat).min(initial=math.inf))


def small(seed: int, *, nodes: tuple[int, int] = (1, 7), most: int = 120) -> Flat:
    """A random problem, tidy: parallel edges merged, nodes with one option decided."""
    flat = flatten_problem(instance(seed, nodes=nodes, most=most))
    return remap(flat, keeping(flat, np.ones(len(flat.cost), dtype=np.bool_)))


def rounding(flat: Flat) -> float:
    """What sums of the numbers at hand may be off by."""
    every = np.concatenate((flat.cost, flat.pool, [flat.constant]))
    return 1e-11 * (1.0 + flat.size) * float(np.abs(every[np.isfinite(every)]).max(initial=0.0))
