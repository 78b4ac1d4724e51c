"""How the seconds of a plan accumulate along its program, to share them out among slots.

A plan prices ops, slots are equations of the loss; both count the floating-point operations of
products (contractions and convolutions), which therefore serve as the common position in the
program. Seconds before the first product and after the last are kept apart, and so are gradient
sums, which all come at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Passing:
    """Seconds of one pass over a program, in program order.

    first_s, last_s: seconds before the first product, and after the last.
    done, spent_s: after each product, the share of the products' operations and the seconds since
        the first began; other ops belong to the product before them.
    """

    first_s: float = 0.0
    last_s: float = 0.0
    done: tuple[float, ...] = ()
    spent_s: tuple[float, ...] = ()


NO_PASSING = Passing()


def passing(blocks: Iterable[tuple[float, float]]) -> Passing:
    """Accumulates (operations of products, seconds) of all ops in program order."""
    rows = list(blocks)
    heavy = [k for k, (flops, _) in enumerate(rows) if flops > 0]
    if not heavy:
        return Passing(first_s=sum(seconds for _, seconds in rows))
    first, last = heavy[0], heavy[-1] + 1
    done = np.cumsum([flops for flops, _ in rows[first:last]])
    spent = np.cumsum([seconds for _, seconds in rows[first:last]])
    ends = np.append(np.array(heavy[1:], dtype=np.int64) - first, last - first) - 1
    return Passing(
        sum(seconds for _, seconds in rows[:first]), sum(seconds for _, seconds in rows[last:]),
        tuple(map(float, done[ends] / done[-1])), tuple(map(float, spent[ends])),
    )  # fmt: skip


def spent_at(pass_: Passing, products: Sequence[float], roofline_s: Sequence[float]) -> Floats:
    """Seconds spent before each slot and at the end.

    Args:
        pass_: seconds of a plan's pass.
        products: operations of products in each slot.
        roofline_s: roofline seconds of each slot, which share out the time outside of products.
    """
    heavy = np.flatnonzero(np.array(products) > 0)
    first, last = (int(heavy[0]), int(heavy[-1]) + 1) if heavy.size else (len(products), 0)
    each = np.zeros(len(products))
    each[:first] = _shared(pass_.first_s, roofline_s[:first])
    if heavy.size:
        done = np.append(0.0, np.cumsum(products)) / float(np.sum(products))
        x, y = (0.0, *pass_.done), (0.0, *pass_.spent_s)
        each += np.diff(np.interp(done, x, y))
        each[last:] += _shared(pass_.last_s, roofline_s[last:])
    found = np.append(0.0, np.cumsum(each))
    total = pass_.first_s + pass_.last_s + (pass_.spent_s[-1] if pass_.spent_s else 0.0)
    return found * (total / found[-1]) if found[-1] > 0 else found


def _shared(seconds: float, weights: Sequence[float]) -> Floats:
    """`seconds` times the share of each weight."""
    total = sum(weights)
    return np.array(weights) * (seconds / total) if total > 0 else np.zeros(len(weights))
