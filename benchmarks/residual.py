"""Error of the fits' predictions for measurements outside of the fit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel import fit_curve
from costmodel.attention import attention_fit
from costmodel.fit import full_grid
from costmodel.products import Surface, product_fit
from profiles import AttentionTable, CollectiveTable, GemmTable

Floats = NDArray[np.float64]
FOLDS = 10


@dataclass(frozen=True, slots=True)
class Residual:
    """Relative errors |predicted / measured - 1| on points left out one at a time."""

    table: str
    what: str
    errors: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.errors))

    @property
    def p90(self) -> float:
        return float(np.quantile(self.errors, 0.9))


def collective_residuals(
    table: CollectiveTable, *, at_least_bytes: int = 1 << 20
) -> tuple[Residual, ...]:
    """Error of the curve of each kind, group size and stride, the point itself left out.

    Points of one size are one point, their median. The last point of a series is not scored, as
    nothing lies beyond it.

    Args:
        table: with one or more points per series.
        at_least_bytes: points below are used but not scored.
    """
    series: dict[tuple[str, int, int], dict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in table.rows:
        series[row.kind, row.group_size, row.stride][row.full_bytes].append(row.seconds)
    found: list[Residual] = []
    for (kind, group_size, stride), points in sorted(series.items()):
        size = np.array(sorted(points), dtype=np.float64)
        seconds = np.array([np.median(points[int(x)]) for x in size])
        errors = [
            abs(float(fit_curve(size[size != x], seconds[size != x])(x)) / t - 1.0)
            for x, t in zip(size[:-1], seconds[:-1], strict=True)
            if x >= at_least_bytes and len(size) > 2
        ]
        if errors:
            apart = f" of stride {stride}" if stride > 1 else ""
            found.append(Residual(table.name, f"{kind} over {group_size}{apart}", tuple(errors)))
    return tuple(found)


def gemm_residuals(table: GemmTable) -> tuple[Residual, ...]:
    """Error of a matrix product of each dtype, the product itself left out.

    Tables of single products are split into `FOLDS` parts, each predicted by the fit that prices
    plans, made from the others. On a full grid with batches the product is the mean of the straight
    lines between its two neighbours along each axis that has them; elsewhere (cubes only) the
    curve over flops without it.
    """
    found: list[Residual] = []
    for dtype in sorted({row.dtype for row in table.rows}):
        rows = [row for row in table.rows if row.dtype == dtype]
        keys = np.array([(r.batch, r.m, r.n, r.k) for r in rows], dtype=np.float64)
        seconds = np.array([row.seconds for row in rows])
        grid = full_grid(keys, seconds)
        if grid is not None:
            errors = _by_neighbours(*grid)
        elif isinstance(product_fit(keys, seconds), Surface):
            errors = _by_folds(keys, seconds)
        else:
            errors = _by_flops(keys, seconds)
        if errors:
            found.append(Residual(table.name, f"product of {dtype}", tuple(errors)))
    return tuple(found)


def attention_residuals(table: AttentionTable) -> tuple[Residual, ...]:
    """Error of attention kernels of each dtype, by the fit of the others.

    The pairs of length and heads are split into `FOLDS` parts, so that a kernel is never predicted
    from one that differs from it in key heads alone.
    """
    found: list[Residual] = []
    for dtype in sorted({row.dtype for row in table.rows}):
        rows = [row for row in table.rows if row.dtype == dtype]
        cells = sorted({(r.head_dim, r.length, r.heads) for r in rows})
        part = dict(zip(cells, _parts(len(cells)).tolist(), strict=True))
        keys = [(r.head_dim, r.length, r.heads, r.key_heads) for r in rows]
        errors: list[float] = []
        for held in range(FOLDS):
            rest = [(*k, r.seconds) for k, r in zip(keys, rows, strict=True) if part[k[:3]] != held]
            fit = attention_fit(rest)
            for (size, length, heads, key_heads), row in zip(keys, rows, strict=True):
                if part[size, length, heads] == held:
                    predicted = fit(length, heads, key_heads, length, size)
                    errors.append(abs(float(predicted) / row.seconds - 1.0))
        found.append(Residual(table.name, f"attention of {dtype}", tuple(errors)))
    return tuple(found)


def _parts(count: int) -> NDArray[np.intp]:
    """A part for each of `count` things, of `FOLDS` about equal parts."""
    return np.random.default_rng(0).permutation(count) % FOLDS


def _by_folds(keys: Floats, seconds: Floats) -> list[float]:
    part = _parts(len(keys))
    found = np.zeros(len(keys))
    for held in range(FOLDS):
        rest = part != held
        found[~rest] = product_fit(keys[rest], seconds[rest])(*keys[~rest].T)
    return np.abs(found / seconds - 1.0).tolist()


def _by_flops(keys: Floats, seconds: Floats) -> list[float]:
    flops = 2.0 * np.prod(keys, axis=1)
    inner = [x for x in np.unique(flops) if flops.min() < x < flops.max()]
    return [
        abs(float(fit_curve(flops[flops != x], seconds[flops != x])(x)) / t - 1.0)
        for x in inner
        for t in seconds[flops == x]
    ]


def _by_neighbours(axes: list[Floats], seconds: Floats) -> list[float]:
    total, count = np.zeros(seconds.shape), np.zeros(seconds.shape)
    for position, axis in enumerate(axes):
        if len(axis) < 3:
            continue
        along = np.moveaxis(seconds, position, 0)
        weight = ((axis[1:-1] - axis[:-2]) / (axis[2:] - axis[:-2])).reshape(
            -1, *([1] * (seconds.ndim - 1))
        )
        np.moveaxis(total, position, 0)[1:-1] += (1.0 - weight) * along[:-2] + weight * along[2:]
        np.moveaxis(count, position, 0)[1:-1] += 1.0
    seen = count > 0.0
    return np.abs(total[seen] / count[seen] / seconds[seen] - 1.0).tolist()
