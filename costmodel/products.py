"""Seconds of matrix products, read off measured tables."""

from __future__ import annotations

import functools
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from profiles import GemmTable

from .fit import Curve, fit_curve, full_grid, monotone_grid
from .grid import complete_grid, interpolate

Floats = NDArray[np.float64]

# Sides below this, or below the smallest measured one, still fill a tile of the matrix unit.
TILE: Final = 64.0

# Each fit has `least`: the smallest m, n and k that it prices as they are; smaller ones are padded.


@final
class _Grid:
    """Timings at every point of a grid of (batch, m, n, k): straight along each axis inside.

    Outside, the nearest time of the grid is scaled by the flops, so the border's efficiency goes
    on, down to a side of `TILE` and to the shortest time of the grid.
    """

    def __init__(self, axes: list[Floats], seconds: Floats) -> None:
        self.least = tuple(min(TILE, float(axis[0])) for axis in axes[1:])
        self._axes = axes
        self._s = np.exp(monotone_grid(np.log(seconds)))

    def __call__(self, b: Floats, m: Floats, n: Floats, k: Floats) -> Floats:
        sides = zip((m, n, k), self.least, strict=True)
        asked = [b, *(np.maximum(x, tile) for x, tile in sides)]
        inside = [np.clip(x, axis[0], axis[-1]) for x, axis in zip(asked, self._axes, strict=True)]
        outside = np.ones(b.shape)
        for x, y in zip(asked, inside, strict=True):
            outside = outside * (x / y)
        scaled = interpolate(self._axes, self._s, inside) * outside
        # Starting a product does not get cheaper with its flops: the shortest time is the floor.
        return np.maximum(scaled, self._s.flat[0])


@final
class Surface:
    """Timings of single products (batch 1) on most points of a grid of (m, n, k).

    log t is straight in the logarithm of each size. A batch of b products takes as long as one
    product of b times as many rows, and where (m, n) was not timed it takes as long as (n, m): in
    OpenXLA's bfloat16 tables of H100 and B200 a batch of 2 or 4 differs from the former by 1 %, an
    exchange by 1 % (medians of 350 timings). Below the smallest timed size the time stays, as the
    device is not filled; above the largest it grows with the flops.
    """

    def __init__(self, keys: Floats, seconds: Floats) -> None:
        sides, depths = np.unique(keys[:, :2]), np.unique(keys[:, 2])
        axes = (sides, sides, depths)
        m, n = np.searchsorted(sides, keys[:, 0]), np.searchsorted(sides, keys[:, 1])
        k = np.searchsorted(depths, keys[:, 2])
        known = np.full([len(axis) for axis in axes], np.nan)
        known[n, m, k] = np.log(seconds)
        known[m, n, k] = np.log(seconds)
        self.least = (TILE, float(sides[0]), float(depths[0]))
        self._axes = [np.log(axis) for axis in axes]
        self._log_s = monotone_grid(complete_grid(self._axes, known))

    def __call__(self, b: Floats, m: Floats, n: Floats, k: Floats) -> Floats:
        rows = b * np.maximum(m, TILE)
        asked = [np.log(x) for x in (rows, n, k)]
        inside = [np.clip(x, axis[0], axis[-1]) for x, axis in zip(asked, self._axes, strict=True)]
        log_s = interpolate(self._axes, self._log_s, inside)
        for x, y in zip(asked, inside, strict=True):
            log_s = log_s + np.maximum(x - y, 0.0)
        return np.exp(log_s)


@final
class _ByFlops:
    """Timings that fill no grid (cubes only): a curve over the number of flops."""

    least = (TILE, TILE, TILE)

    def __init__(self, curve: Curve) -> None:
        self._curve = curve

    def __call__(self, b: Floats, m: Floats, n: Floats, k: Floats) -> Floats:
        return self._curve(2.0 * b * m * n * k)


ProductFit = _Grid | Surface | _ByFlops

# Share of the points of a grid that are timed at least, for the others to be filled in.
FILLED: Final = 0.5


def product_fit(keys: Floats, seconds: Floats) -> ProductFit:
    """A fit to the timings of one dtype.

    Args:
        keys: batch, m, n, k of each, [timings, 4].
        seconds: [timings].
    """
    if np.all(keys[:, 0] == 1.0):
        shape = [len(np.unique(column)) for column in keys.T]
        if min(shape[1:]) > 1 and len(keys) >= FILLED * np.prod(shape):
            return Surface(keys[:, 1:], seconds)
    grid = full_grid(keys, seconds)
    if grid is not None:
        return _Grid(*grid)
    return _ByFlops(fit_curve(2.0 * np.prod(keys, axis=1), seconds))


@functools.lru_cache(maxsize=64)
def table_fit(table: GemmTable, dtype: str) -> ProductFit | None:
    """The fit to a table's timings of one dtype, None if it has none.

    OpenXLA's table calls the tensorfloat32 path float32.
    """
    rows = [(r.batch, r.m, r.n, r.k, r.seconds) for r in table.rows if r.dtype == dtype]
    if not rows:
        return None
    columns = np.array(rows, dtype=np.float64)
    return product_fit(columns[:, :4], columns[:, 4])
