"""What goes from one level of fixing, and from one search of neighbourhoods, to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..arrays import Flat, Ints
from ..bound.memory_multipliers import Multipliers
from ..problem import Floats
from ..reduce.reduce import Reduced
from .large_neighbourhoods import Neighbours

MOST_OTHERS = 4  # choices at which neighbourhoods got stuck, to go back to
GUESSES, WARMTHS = 60, 6  # choices off disturbed messages


def are_whole(flat: Flat) -> bool:
    """Whether all costs are whole numbers, so that choices differ by one or more."""
    most = 0.0
    for costs in (flat.cost, flat.pool):
        finite = costs[np.isfinite(costs)]
        if not (finite == np.floor(finite)).all():
            return False
        most = max(most, float(np.abs(finite).max(initial=0.0)))
    return most >= 1.0


def some_option_each(flat: Flat, held: np.ndarray) -> bool:
    """Whether every node keeps an option."""
    node = np.repeat(np.arange(flat.size), flat.sizes)
    return bool((np.bincount(node[held], minlength=flat.size) > 0).all())


def carried_over(multipliers: Multipliers, flat: Flat) -> Floats:
    """Prices of the moments that a level has, by the level above."""
    known = dict(
        zip(multipliers.flat.moment.tolist(), multipliers.multiplier.tolist(), strict=True)
    )
    return np.array([known.get(t, 0.0) for t in flat.moment.tolist()])


def guesses(multipliers: Multipliers, seed: int) -> Iterator[Ints]:
    """Choices that fit, read off disturbed messages, more and less so."""
    random = np.random.default_rng(seed)
    for n in range(GUESSES):
        heat = multipliers.gap / multipliers.flat.size * 4.0 ** (n % WARMTHS - 2)
        choice = multipliers.perturbed(random, heat)
        if choice is not None and np.isfinite(multipliers.flat.cost_of(choice)):
            yield choice


def projected(choice: Ints, levels: Sequence[Reduced], multipliers: Multipliers) -> Ints:
    """The best choice of the last level: the one most like a choice of the first, or its own."""
    for level in levels:
        choice = level.project(choice)
    choice = multipliers.descent.improve(choice)
    mine = multipliers.choice
    fits = multipliers.flat.fits(choice)
    if mine is not None and (not fits or multipliers.cost < multipliers.flat.cost_of(choice)):
        return mine
    return choice


def elsewhere(multipliers: Multipliers, around: Neighbours, seed: int) -> Neighbours:
    """The search from another choice, which knows the last ones that it got stuck at."""
    others = (*around.others, around.choice)[-MOST_OTHERS:]
    start = multipliers.perturbed(
        np.random.default_rng(seed), multipliers.gap / multipliers.flat.size
    )
    start = around.choice if start is None else start
    return Neighbours(multipliers.flat, start, multipliers.best.slack, seed, around.budget, others)
