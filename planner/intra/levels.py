"""What is asked of a problem between one level of fixing and the next."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .flat import Flat, Ints
from .prices import Prices
from .problem import Floats

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


def carried_over(prices: Prices, flat: Flat) -> Floats:
    """Prices of the moments that a level has, by the level above."""
    known = dict(zip(prices.flat.moment.tolist(), prices.price.tolist(), strict=True))
    return np.array([known.get(t, 0.0) for t in flat.moment.tolist()])


def guesses(prices: Prices, seed: int) -> Iterator[Ints]:
    """Choices that fit, read off disturbed messages, more and less so."""
    random = np.random.default_rng(seed)
    for n in range(GUESSES):
        heat = prices.gap / prices.flat.size * 4.0 ** (n % WARMTHS - 2)
        choice = prices.other(random, heat)
        if choice is not None and np.isfinite(prices.flat.price(choice)):
            yield choice
