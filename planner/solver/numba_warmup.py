"""A small problem that is solved with every loop, which compiles it or loads it from the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import flatten_problem
from .bound.memory_multipliers import Multipliers
from .bound.message_passing import Messages
from .bound.reduced_cost_fixing import cheap_enough
from .exact.components import components
from .problem import Edge, IntraProblem
from .reduce import node_elimination
from .reduce.reduce import reduce
from .tables import least_gathered, least_of_classes, split_gathered


def is_cold() -> bool:
    """Whether a loop that has a place on disk had to be compiled."""
    shortest: Any = node_elimination.min_plus
    shortest(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros(1), np.zeros((1, 1)))
    return bool(shortest.stats.cache_path) and not shortest.stats.cache_hits


def run() -> None:
    """Solves a small problem by hand, with every loop."""
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
    pair = np.array([0, 1, 0])
    table, at, sites = problem.edges[1].cost, (pair, pair), (np.ones(1), np.ones(1))
    least_of_classes(table, pair, pair, np.full((2, 2), np.inf))
    least_gathered(table, 1.0, at, at, np.full((2, 2), np.inf))
    split_gathered(table, 1.0, at, sites, 1.0, False, np.zeros((3, 3)))
    state = reduce(flatten_problem(problem))
    state.project(np.zeros(count, dtype=np.int64))
    flat = state.flat
    if not flat.size:
        return
    multipliers = Multipliers(flat)
    multipliers.step()
    state.lift(np.zeros(flat.size, dtype=np.int64))
    cheap_enough(multipliers.messages, multipliers.best, np.inf)
    components(flat)
    Messages(flat).levelled()
    Messages(flat, single=True).sweep()
