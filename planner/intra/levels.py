"""What is asked of a problem between one level of fixing and the next."""

from __future__ import annotations

import numpy as np

from .flat import Flat
from .prices import Prices
from .problem import Floats


def are_whole(flat: Flat) -> bool:
    """Whether all costs are whole numbers, so that choices differ by one or more."""
    finite = np.concatenate((flat.cost, flat.pool))
    finite = finite[np.isfinite(finite)]
    return bool((finite == np.floor(finite)).all()) and float(np.abs(finite).max(initial=0)) >= 1.0


def some_option_each(flat: Flat, held: np.ndarray) -> bool:
    """Whether every node keeps an option."""
    node = np.repeat(np.arange(flat.size), flat.sizes)
    return bool((np.bincount(node[held], minlength=flat.size) > 0).all())


def carried_over(prices: Prices, flat: Flat) -> Floats:
    """Prices of the moments that a level has, by the level above."""
    known = dict(zip(prices.flat.moment.tolist(), prices.price.tolist(), strict=True))
    return np.array([known.get(t, 0.0) for t in flat.moment.tolist()])
