"""Sides of a problem that is split: parts of all choices, each with its bound and prices.

Sides of large problems are not reduced. They are the problem itself where options that are not
theirs cost more than is of interest, so that messages and prices go on from those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Ints
from ..bound.memory_multipliers import Prices
from ..exact.ilp import columns
from ..reduce.reduce import Reduced
from .restarts import some_option_each

SWEPT = 8  # passes over all columns in a step of prices
GROWING = 2e-3  # share of what is wanted that a step must bring for more of them
DEAR = 2.0  # what is not theirs costs more by so many gaps


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A part of all choices: its bound, its problem with prices, and the way to it."""

    bound: float
    prices: Prices
    levels: tuple[Reduced, ...]
    held: np.ndarray | None = None  # options that are left, all if None
    growing: bool = False  # whether more steps of prices may raise the bound


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A side after some steps, None if nothing of interest is left; choices and work on the way."""

    side: Side | None
    found: tuple[Ints, ...]
    work: float


def side_of(side: Side, held: np.ndarray, wanted: float) -> Side | None:
    """The part of a large side with some options; None where some node has none.

    Args:
        side: what is split.
        held: options of its problem.
        wanted: only choices below this cost are of interest.
    """
    held = held if side.held is None else held & side.held
    prices = side.prices
    if some_option_each(prices.flat, held):
        most = wanted - side.bound if np.isfinite(wanted) else abs(side.bound)
        beside = prices.beside(np.where(held, 0.0, DEAR * most))
        return Side(side.bound, beside, side.levels, held)
    return None


def further(side: Side, steps: int, wanted: float) -> Outcome:
    """Steps of prices; they change the prices of this side only."""
    prices, before, found = side.prices, side.prices.best.bound, list[Ints]()
    for step in range(steps):
        if prices.step():
            assert prices.choice is not None
            found.append(prices.choice)
        if prices.best.bound >= wanted:
            return Outcome(None, tuple(found), (step + 1) * SWEPT * columns(prices.flat))
    grown = prices.best.bound - before
    after = replace(
        side, bound=max(side.bound, prices.best.bound),
        growing=grown > GROWING * steps * (wanted - before),
    )  # fmt: skip
    return Outcome(after, tuple(found), steps * SWEPT * columns(prices.flat))


def at_once(jobs: Sequence[Callable[[], Outcome]]) -> list[Outcome]:
    """The outcomes of jobs that share nothing, in order; each has a thread of its own."""
    if len(jobs) < 2:
        return [job() for job in jobs]
    with ThreadPoolExecutor(len(jobs) - 1) as others:
        waiting = [others.submit(job) for job in jobs[1:]]
        first = jobs[0]()
        return [first, *(each.result() for each in waiting)]
