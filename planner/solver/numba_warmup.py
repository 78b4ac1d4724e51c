"""Compiles all loops, or loads them from the cache, on a small problem: before the clock starts."""

from __future__ import annotations

import functools

import numpy as np

from .arrays import flatten_problem
from .bound.memory_multipliers import Multipliers
from .bound.message_passing import Messages
from .bound.reduced_cost_fixing import cheap_enough
from .problem import Edge, IntraProblem
from .reduce.reduce import reduce


@functools.cache
def warm() -> None:
    """Runs every compiled loop once in this process."""
    random = np.random.default_rng(0)
    count = 9
    pairs = [(u, v) for v in range(8) for u in range(v) if u != 0 or v == 1]
    pairs += [(3, 8), (4, 8)]  # 1 follows 0, 8 uses no memory between two
    swap = np.where(np.eye(3) > 0, 1.0, np.inf)
    problem = IntraProblem(
        tuple(random.random(3) for _ in range(count)),
        tuple(Edge(u, v, swap if u == 0 else random.random((3, 3))) for u, v in pairs),
        tuple(np.array([0.0, 2.0, 5.0]) for _ in range(count)),
        tuple((v // 2, v // 2 + 2) if 2 < v < 8 else (0, 0) for v in range(count)), 9.0,
    )  # fmt: skip
    state = reduce(flatten_problem(problem))
    state.project(np.zeros(count, dtype=np.int64))
    flat = state.flat
    if not flat.size:
        return
    multipliers = Multipliers(flat)
    multipliers.step()
    state.lift(np.zeros(flat.size, dtype=np.int64))
    cheap_enough(multipliers.messages, multipliers.best, np.inf)
    Messages(flat).levelled()
    Messages(flat, single=True).sweep()
