"""Timings on a grid of sizes: points that were not timed, and values between the points."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


def complete_grid(axes: list[Floats], known: Floats) -> Floats:
    """Fills the points that were not timed.

    Between timed points of an axis log t is straight, the mean over the axes that have them.
    Then, below the first timed point of an axis the time stays, above the last it grows with the
    size; the least over the axes.

    Args:
        axes: logarithms of the sizes.
        known: logarithms of the seconds, NaN where not timed.
    """
    for inner in (True, False):
        while np.isnan(known).any():
            each = np.stack([_along(known, axis, d, inner=inner) for d, axis in enumerate(axes)])
            seen = ~np.isnan(each)
            mean = np.where(seen, each, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
            least = np.where(seen, each, np.inf).min(axis=0)
            fresh = np.isnan(known) & seen.any(axis=0)
            if not fresh.any():
                break
            known = np.where(fresh, mean if inner else least, known)
    return known


def _along(known: Floats, axis: Floats, dim: int, *, inner: bool) -> Floats:
    """Values along one dimension of a grid: between known points, or outside of them."""
    values = np.moveaxis(known, dim, -1)
    seen, count = ~np.isnan(values), values.shape[-1]
    places: Places = np.arange(count, dtype=np.intp)
    before: Places = np.maximum.accumulate(np.where(seen, places, -1), axis=-1)
    reverse: Places = np.where(seen, places, count)[..., ::-1]
    after: Places = np.minimum.accumulate(reverse, axis=-1)[..., ::-1]
    low, high = np.maximum(before, 0), np.minimum(after, count - 1)
    left = np.take_along_axis(values, low, -1)
    right = np.take_along_axis(values, high, -1)
    if inner:
        width = np.where(high > low, axis[high] - axis[low], 1.0)
        part = (axis[places] - axis[low]) / width
        found = np.where((before >= 0) & (after < count), left + part * (right - left), np.nan)
    else:
        grown = left + axis[places] - axis[low]
        found = np.where(before < 0, np.where(after < count, right, np.nan), grown)
    return np.moveaxis(found, -1, dim)


def interpolate(axes: list[Floats], values: Floats, at: list[Floats]) -> Floats:
    """Interpolates `values` linearly between the points of a grid, one axis after another."""
    corners = np.zeros(at[0].shape)
    lows: list[tuple[Places, Places]] = []
    weights: list[Floats] = []
    for axis, x in zip(axes, at, strict=True):
        low = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, max(len(axis) - 2, 0))
        high = np.minimum(low + 1, len(axis) - 1)
        width = np.where(high > low, axis[high] - axis[low], 1.0)
        lows.append((low, high))
        weights.append(np.where(high > low, (x - axis[low]) / width, 0.0))
    for corner in itertools.product((0, 1), repeat=len(axes)):
        weight = np.ones(at[0].shape)
        for side, w in zip(corner, weights, strict=True):
            weight = weight * (w if side else 1.0 - w)
        index = tuple(lows[i][side] for i, side in enumerate(corner))
        corners = corners + weight * values[index]
    return corners
