"""Subproblems of a problem that is split, each with its bound and multipliers.

Subproblems of large problems are not reduced. They are the problem itself with a penalty on the
options that they exclude, so that messages and multipliers continue from those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Ints
from ..bound.memory_multipliers import Multipliers
from ..exact.ilp import columns
from ..reduce.reduce import Reduced
from .restarts import some_option_each

SWEPT = 8  # passes over all columns in a step of the multipliers
GROWING = 2e-3  # growth of the bound that justifies more steps, as a share of the gap
DEAR = 2.0  # penalty of an excluded option, in gaps


@dataclass(frozen=True, slots=True, eq=False)
class Subproblem:
    """A subset of all choices: its bound, its problem with multipliers, and its reductions."""

    bound: float
    multipliers: Multipliers
    levels: tuple[Reduced, ...]
    held: np.ndarray | None = None  # mask of the options left, all if None
    growing: bool = False  # whether more steps may raise the bound


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A subproblem after some steps (None if no wanted choice is left), with choices and work."""

    subproblem: Subproblem | None
    found: tuple[Ints, ...]
    work: float


def subproblem_of(subproblem: Subproblem, held: np.ndarray, wanted: float) -> Subproblem | None:
    """A large subproblem restricted to some options; None if some node has none.

    Args:
        subproblem: the subproblem to restrict.
        held: mask of the options of its problem.
        wanted: cost below which a choice is wanted [s].
    """
    held = held if subproblem.held is None else held & subproblem.held
    multipliers = subproblem.multipliers
    if some_option_each(multipliers.flat, held):
        most = wanted - subproblem.bound if np.isfinite(wanted) else abs(subproblem.bound)
        penalised = multipliers.with_costs(np.where(held, 0.0, DEAR * most))
        return Subproblem(subproblem.bound, penalised, subproblem.levels, held)
    return None


def further(subproblem: Subproblem, steps: int, wanted: float) -> Outcome:
    """Runs steps of the multipliers, which change those of this subproblem only."""
    multipliers, before, found = (
        subproblem.multipliers,
        subproblem.multipliers.best.bound,
        list[Ints](),
    )
    for step in range(steps):
        if multipliers.step():
            assert multipliers.choice is not None
            found.append(multipliers.choice)
        if multipliers.best.bound >= wanted:
            return Outcome(None, tuple(found), (step + 1) * SWEPT * columns(multipliers.flat))
    grown = multipliers.best.bound - before
    after = replace(
        subproblem, bound=max(subproblem.bound, multipliers.best.bound),
        growing=grown > GROWING * steps * (wanted - before),
    )  # fmt: skip
    return Outcome(after, tuple(found), steps * SWEPT * columns(multipliers.flat))


def at_once(jobs: Sequence[Callable[[], Outcome]]) -> list[Outcome]:
    """Outcomes of independent jobs, in order, each on its own thread."""
    if len(jobs) < 2:
        return [job() for job in jobs]
    with ThreadPoolExecutor(len(jobs) - 1) as others:
        waiting = [others.submit(job) for job in jobs[1:]]
        first = jobs[0]()
        return [first, *(each.result() for each in waiting)]
