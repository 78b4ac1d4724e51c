"""Monotone fits to noisy timings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Seconds over a size: straight between knots, never falling.

    Straight in size and not in its logarithm, because a time is latency plus size over rate, of
    which only the former is then met exactly between two knots. Below the first knot the time
    stays that of the first knot; above the last it goes on with the slope of the last factor of
    two.
    """

    size: Floats
    seconds: Floats

    def __call__(self, size: ArrayLike) -> Floats:
        sizes = np.asarray(size, dtype=np.float64)
        inside = np.interp(sizes, self.size, self.seconds)
        beyond = np.maximum(sizes - self.size[-1], 0.0)
        return np.where(sizes > 0.0, inside + beyond * self.last_slope, 0.0)

    @property
    def last_slope(self) -> float:
        """Seconds per unit of size past the last knot."""
        size, seconds = self.size, self.seconds
        half = float(size[-1]) / 2.0 * (1.0 + 1e-9)
        start = max(int(np.count_nonzero(size <= half)) - 1, 0)
        rise = seconds[-1] - seconds[start]
        if start == len(size) - 1 or rise <= 0.0:
            return float(seconds[-1] / size[-1])
        return float(rise / (size[-1] - size[start]))


def fit_curve(size: ArrayLike, seconds: ArrayLike) -> Curve:
    """Fits the never-falling curve with the least sum of absolute errors of log seconds.

    Absolute errors, so that a few slow first runs among the small sizes do not lift the rest.

    Args:
        size: at least one positive size, in any order, repeats allowed.
        seconds: the times, positive, as many as sizes.

    Raises:
        ValueError: if there are no points, or one is not positive.
    """
    x, y = np.asarray(size, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if not len(x) or len(x) != len(y) or x.min() <= 0.0 or y.min() <= 0.0:
        raise ValueError(f"fit_curve: needs positive sizes and seconds, found {x} and {y}")
    at: dict[float, list[float]] = defaultdict(list)
    for xi, yi in zip(x.tolist(), y.tolist(), strict=True):
        at[xi].append(float(np.log(yi)))
    knots = sorted(at)
    return Curve(np.array(knots), np.exp(isotonic_median([at[knot] for knot in knots])))


def isotonic_median(samples: Iterable[list[float]]) -> Floats:
    """The never-falling sequence closest to `samples` in absolute error: pool adjacent violators.

    Args:
        samples: the values seen at each place, in order of place.

    Returns:
        One value per place.
    """
    blocks: list[tuple[list[float], int, float]] = []
    for values in samples:
        pooled, places = list(values), 1
        middle = float(np.median(pooled))
        while blocks and blocks[-1][2] > middle:
            before, width, _ = blocks.pop()
            pooled, places = before + pooled, places + width
            middle = float(np.median(pooled))
        blocks.append((pooled, places, middle))
    return np.repeat([middle for _, _, middle in blocks], [places for _, places, _ in blocks])


def monotone_grid(log_s: Floats) -> Floats:
    """Makes a grid of log seconds never fall along any of its axes.

    The mean of the largest value at or below each point and the smallest at or above it: both
    never fall, and a grid that already never falls is unchanged.
    """
    below, above = log_s, log_s
    for axis in range(log_s.ndim):
        below = np.maximum.accumulate(below, axis=axis)
        above = np.flip(np.minimum.accumulate(np.flip(above, axis), axis=axis), axis)
    return (below + above) / 2.0


def full_grid(keys: Floats, seconds: Floats) -> tuple[list[Floats], Floats] | None:
    """The axes and the array of timings that lie on every point of a grid, or None.

    Args:
        keys: [points, axes], the sizes of each timing.
        seconds: [points].
    """
    axes = [np.unique(column) for column in keys.T]
    shape = [len(axis) for axis in axes]
    if int(np.prod(shape)) != len(np.unique(keys, axis=0)) or len(keys) != int(np.prod(shape)):
        return None
    return axes, seconds[np.lexsort(keys.T[::-1])].reshape(shape)
