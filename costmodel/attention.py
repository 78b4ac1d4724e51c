"""Seconds of attention kernels, read off measured tables."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiles import AttentionTable, KernelRow

from .fit import monotone_grid
from .grid import complete_grid, interpolate

Floats = NDArray[np.float64]
Timing = tuple[int, int, int, float]  # length, heads, key heads, seconds

# Time of the backward kernel against the forward one: it has 2.5 times the products, at 0.86 of
# their rate. cuDNN on H100 with heads of 128 reaches 499, 518 and 516 TFLOP/s backward against 609,
# 600 and 595 forward at lengths of 4096, 8192 and 16384. Source: Shah et al., FlashAttention-3,
# arXiv:2407.08608, figures 5 and 6.
BACKWARD: Final = 2.5 / 0.86

# Of a head, softmax takes as long as the products of this many features. Median of five lengths of
# causal FlashAttention-2, 1,024 to 16,384, with heads of 64 and of 128 at the rates of an A100: the
# smaller take 0.586 times the time (Dao-AILab/flash-attention, issue 307). Timed elsewhere, so no
# part of the fits: 0.64 on H100 and H200, 0.76 on B200, 0.78 on GB200, whose products are faster.
SOFTMAX: Final = 26.0

# Two timings tell the cost of keys and values apart from that of products if they differ by at
# least this factor in key heads, and take at least this long.
_APART, _LONG_S = 2.0, 1e-4
# Of a timing, at most this share is taken for keys and values.
_MOST = 0.7


@final
class _Heads:
    """Causal attention with heads of one size.

    t = S(length, heads) + c * length * key heads, where `heads` and `key heads` count those of all
    batches. log S is straight in the logarithms of both; below the smallest size it stays, above
    the largest it grows with the products: the square of the length, times the heads. c is the
    median slope between timings that differ in key heads alone.
    """

    def __init__(self, timings: Sequence[Timing]) -> None:
        cells: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
        for length, heads, key_heads, seconds in timings:
            cells[length, heads].append((key_heads, seconds))
        self.key_s = _slope(cells)
        sides = [np.unique([cell[side] for cell in cells]).astype(np.float64) for side in (0, 1)]
        known = np.full([len(side) for side in sides], np.nan)
        for cell, found in cells.items():
            place = tuple(np.searchsorted(side, x) for side, x in zip(sides, cell, strict=True))
            rest = [max(t - self.key_s * cell[0] * n, (1.0 - _MOST) * t) for n, t in found]
            known[place] = np.mean(np.log(rest))
        self._axes = [np.log(side) for side in sides]
        self._log_s = monotone_grid(complete_grid(self._axes, known))

    def products_s(self, length: Floats, heads: Floats) -> Floats:
        """Seconds of everything but keys and values."""
        asked = [np.log(np.maximum(x, 1.0)) for x in (length, heads)]
        inside = [np.clip(x, axis[0], axis[-1]) for x, axis in zip(asked, self._axes, strict=True)]
        log_s = interpolate(self._axes, self._log_s, inside)
        for power, x, y in zip((2.0, 1.0), asked, inside, strict=True):
            log_s = log_s + power * np.maximum(x - y, 0.0)
        return np.exp(log_s)


def _slope(cells: dict[tuple[int, int], list[tuple[int, float]]]) -> float:
    """Seconds per key head and position."""
    slopes: list[float] = []
    for (length, _), found in cells.items():
        (few, first), (many, last) = min(found), max(found)
        if many >= _APART * few and last >= _LONG_S and many > few:
            slopes.append((last - first) / ((many - few) * length))
    return max(float(np.median(slopes)), 0.0) if slopes else 0.0


@final
class AttentionFit:
    """A fit to the timings of one dtype, for heads of any size.

    Between two timed sizes of heads log t is straight in the logarithm of the size; above the
    largest it grows with the size. Below the smallest, d, a head of x features takes (x + s) /
    (d + s) of its time, s = `SOFTMAX`.
    """

    def __init__(self, timings: dict[int, list[Timing]]) -> None:
        self._sizes = np.array(sorted(timings), dtype=np.float64)
        self._heads = [_Heads(timings[size]) for size in sorted(timings)]

    def __call__(
        self, length: ArrayLike, heads: ArrayLike, key_heads: ArrayLike, keys: ArrayLike,
        features: float, *, backward: bool = False,
    ) -> Floats:  # fmt: skip
        """Seconds of one kernel.

        Args:
            length: queries and keys of a causal head with as many pairs of both.
            heads: query heads of all batches.
            key_heads: key heads of all batches.
            keys: keys of a head.
            features: size of a head.
            backward: whether it is the backward kernel, which reads keys and values and writes
                their gradients.
        """
        sizes = (np.asarray(x, dtype=np.float64) for x in (length, heads, key_heads, keys))
        each, w, v, s = np.broadcast_arrays(*sizes)
        times, moves = (BACKWARD, 2.0) if backward else (1.0, 1.0)
        found = [times * one.products_s(each, w) + moves * one.key_s * v * s for one in self._heads]
        beyond = max(features / float(self._sizes[-1]), 1.0)
        beyond *= min((features + SOFTMAX) / (float(self._sizes[0]) + SOFTMAX), 1.0)
        high = int(np.clip(np.searchsorted(self._sizes, features), 1, max(len(found) - 1, 1)))
        if len(found) == 1:
            return found[0] * beyond
        edges = np.log(self._sizes[high - 1 : high + 1])
        part = float(np.clip((np.log(features) - edges[0]) / (edges[1] - edges[0]), 0.0, 1.0))
        return found[high - 1] ** (1.0 - part) * found[high] ** part * beyond


def attention_fit(rows: Sequence[tuple[int, int, int, int, float]]) -> AttentionFit:
    """A fit to timings of one dtype.

    Args:
        rows: head size, length, heads, key heads and seconds of each.
    """
    timings: dict[int, list[Timing]] = defaultdict(list)
    for size, length, heads, key_heads, seconds in rows:
        timings[size].append((length, heads, key_heads, seconds))
    return AttentionFit(timings)


@final
class KernelFit:
    """A fit to timings of the kernels that JAX calls, for heads of any size.

    t = t_0 + heads (a pairs + b keys) + c unequal

    The terms of each size of heads and each pass are the least squares of relative errors, without
    negative ones. `unequal` are the keys that the last query sees beyond the mean: its block of
    queries runs longest, alone where few heads leave nothing else to run. Between two sizes of
    heads log t is straight in the logarithm of the size, beyond the largest it grows with the size,
    below the smallest it stays.
    """

    def __init__(self, rows: Sequence[KernelRow]) -> None:
        self._sizes = np.array(sorted({r.head_dim for r in rows}), dtype=np.float64)
        self._terms: dict[bool, list[Floats]] = {False: [], True: []}
        for size in self._sizes:
            own = [r for r in rows if r.head_dim == size]
            columns = np.array([
                [1.0, r.heads * r.pairs, r.heads * r.keys, r.keys - r.pairs / r.keys] for r in own
            ])  # fmt: skip
            for backward, found in self._terms.items():
                seconds = np.array([r.backward_s if backward else r.seconds for r in own])
                found.append(_least_squares(columns / seconds[:, None]))

    def __call__(
        self, heads: ArrayLike, pairs: ArrayLike, keys: ArrayLike, features: float, *,
        unequal: ArrayLike = 0.0, backward: bool = False,
    ) -> Floats:  # fmt: skip
        """Seconds of one kernel.

        Args:
            heads: query heads of all batches.
            pairs: pairs of a query and a key that are computed for one head.
            keys: keys of a head.
            features: size of a head.
            unequal: keys that the last query sees beyond the mean.
            backward: whether it is the backward kernel.
        """
        sizes = (np.asarray(x, np.float64) for x in (heads, pairs, keys, unequal))
        w, p, s, u = np.broadcast_arrays(*sizes)
        each = [t[0] + w * (t[1] * p + t[2] * s) + t[3] * u for t in self._terms[backward]]
        each = list(itertools.accumulate(each, np.maximum))  # larger heads are never faster
        beyond = max(features / float(self._sizes[-1]), 1.0)
        if len(each) == 1:
            return each[0] * beyond
        high = int(np.clip(np.searchsorted(self._sizes, features), 1, len(each) - 1))
        edges = np.log(self._sizes[high - 1 : high + 1])
        part = float(np.clip((np.log(features) - edges[0]) / (edges[1] - edges[0]), 0.0, 1.0))
        less, more = (np.maximum(each[i], np.finfo(np.float64).tiny) for i in (high - 1, high))
        return less * (more / less) ** part * beyond


def _least_squares(columns: Floats) -> Floats:
    """Terms whose sums over columns [rows, terms] are nearest to 1; negative ones are left out.

    The most negative term goes first, and the others are fitted anew.
    """
    scale: Floats = np.abs(columns).max(axis=0)
    kept = np.flatnonzero(scale > 0.0)
    while True:
        found: Floats = np.linalg.pinv(columns[:, kept] / scale[kept]) @ np.ones(len(columns))
        if not kept.size or found.min() >= 0.0:
            break
        kept = np.delete(kept, found.argmin())
    terms = np.zeros(columns.shape[1])
    terms[kept] = found / scale[kept]
    return terms


@functools.lru_cache(maxsize=64)
def kernel_fit(table: AttentionTable, dtype: str) -> KernelFit | None:
    """The fit to a table's timings of the kernels that JAX calls, None if it has none."""
    rows = [row for row in table.kernels if row.dtype == dtype]
    return KernelFit(rows) if rows else None


@functools.lru_cache(maxsize=64)
def attention_table_fit(table: AttentionTable, dtype: str) -> AttentionFit | None:
    """The fit to a table's timings of one dtype, None if it has none."""
    rows = [
        (r.head_dim, r.length, r.heads, r.key_heads, r.seconds)
        for r in table.rows
        if r.dtype == dtype
    ]
    return attention_fit(rows) if rows else None
