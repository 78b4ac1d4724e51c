"""Whether two arrays that should be equal differ by more than the worth of a rule allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .record import BOUNDED, EXACT, REASSOCIATED, UNBOUNDED, Worth
from .values import Array

# worth in floats -> (numbers, seed) on which both sides are tried
_TRIED = {
    EXACT: (("whole", 1), ("wild", 2), ("wild", 3)),
    REASSOCIATED: (("whole", 1), ("finite", 2), ("holes", 3)),
    BOUNDED: (("whole", 1), ("finite", 2), ("finite", 3)),
    UNBOUNDED: (("whole", 1),),
}


@dataclass(frozen=True, slots=True)
class Bound:
    """What two results of the same terms may differ by.

    terms: of each element, the sum of the absolute values of all that is added up.
    eps, least, largest: of the shortest type that something is rounded to.
    steps: roundings on both sides.
    whole: sums of terms below this have no error at all.
    """

    terms: Array
    eps: float
    least: float
    largest: float
    steps: int
    whole: float = 0.0


def tried(worth: Worth) -> tuple[tuple[str, int], ...]:
    """Numbers and seeds on which both sides of a rule are tried in floats."""
    unknown = worth.floats == REASSOCIATED and not worth.bound
    return _TRIED[UNBOUNDED if unknown else worth.floats]


def unequal(a: Array, b: Array) -> Array:
    """Where two arrays differ in any bit; all NaNs are one value."""
    if a.dtype.kind in "biu" or a.dtype.itemsize > 8:
        return a != b
    if a.dtype.kind == "c":
        return unequal(a.real, b.real) | unequal(a.imag, b.imag)
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) & (np.signbit(x) == np.signbit(y))
    return ~(same | (np.isnan(x) & np.isnan(y)))


def beyond(a: Array, b: Array, bound: Bound, worth: Worth) -> Array:
    """Where two arrays of floats differ by more than a bound.

    NaN and infinities must stay where they were if the rule says so. What may overflow may differ.
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    terms = bound.terms
    with np.errstate(all="ignore"):
        allowed = bound.steps * (bound.eps * terms + bound.least)
        allowed = np.where(terms < bound.whole, 0.0, allowed)
        far = np.abs(x - y) > allowed
        near = np.isfinite(terms) & (terms < bound.largest / 4)
        odd = np.zeros(x.shape, bool)
        if worth.floats == REASSOCIATED:
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            odd = ~np.isfinite(terms) & ~same
        return np.where(near, far | ~np.isfinite(x - y), odd)
