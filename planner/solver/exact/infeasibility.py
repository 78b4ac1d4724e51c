"""Why nothing fits: the moment and the nodes that conflict, as far as it can be said simply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import flatten_problem
from ..problem import IntraProblem
from ..reduce.arc_consistency import consistent

NAMED = 10  # nodes that are named, the largest users first


@dataclass(frozen=True, slots=True)
class Conflict:
    """What stands against every choice.

    moment: when memory is short, None where it is not about memory.
    nodes: that take part, the largest users first.
    least_bytes: that they and all others need then, at least.
    """

    text: str
    moment: int | None
    nodes: tuple[int, ...]
    least_bytes: float | None


def conflict(problem: IntraProblem, times: Sequence[int]) -> Conflict:
    """Explains why a problem has no choice; to be asked only where that is known.

    Args:
        problem: without a choice.
        times: what its moments are called.
    """
    empty = [v for v, c in enumerate(problem.node_cost) if not np.isfinite(c).any()]
    if empty:
        what = "no strategy" if not len(problem.node_cost[empty[0]]) else "only forbidden ones"
        return Conflict(f"node {empty[0]} has {what}", None, tuple(empty[:NAMED]), None)
    flat = flatten_problem(problem)
    held = consistent(flat)
    node = np.repeat(np.arange(flat.size), flat.sizes)
    left = np.bincount(node[held], minlength=flat.size)
    if not (left == 0).any():
        return _crowded(problem, np.split(held, flat.first[1:-1]), times)
    crowded = _crowded(problem, [np.isfinite(c) for c in problem.node_cost], times)
    if crowded.least_bytes is not None and crowded.least_bytes > problem.limit:
        return crowded
    v = int(np.argmin(left))
    near = {e.u + e.v - v for e in problem.edges if v in (e.u, e.v) and e.u != e.v}
    text = f"every strategy of node {v} is forbidden by its neighbours or uses too much memory"
    return Conflict(text, None, (v, *sorted(near)[: NAMED - 1]), None)


def _crowded(problem: IntraProblem, held: Sequence[np.ndarray], times: Sequence[int]) -> Conflict:
    """The moment that needs most even if every node that is alive uses least."""
    least = [float(use[some].min()) for use, some in zip(problem.usage, held, strict=True)]
    memory = problem.memory_of(least)
    if not len(memory):
        return Conflict("the forbidden pairs rule out every choice", None, (), None)
    moment = int(np.argmax(memory))
    alive = [v for v, (a, b) in enumerate(problem.intervals) if a <= moment < b]
    alive.sort(key=lambda v: -least[v])
    need = float(memory[moment])
    if need > problem.limit:
        text = (
            f"at moment {times[moment]} the {len(alive)} nodes alive need at least {need:.15g} of "
            f"memory, the limit is {problem.limit:.15g}"
        )
    else:
        text = (
            f"no combination of strategies fits; the tightest moment is {times[moment]}, where "
            f"the {len(alive)} nodes alive need at least {need:.15g} of {problem.limit:.15g}"
        )
    return Conflict(text, times[moment], tuple(alive[:NAMED]), need)
