"""NumPy functions that NumPy itself lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import IRError

Array = np.ndarray[Any, Any]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy element type of that name, the short floats of `ml_dtypes` included.

    Raises:
        IRError: if NumPy cannot hold such elements (random keys, tokens).
    """
    if hasattr(ml_dtypes, name):
        return np.dtype(getattr(ml_dtypes, name))
    try:
        return np.dtype(name)
    except TypeError:
        raise IRError(f"NumPy has no elements of type '{name}'") from None


def by_element(fn: Callable[[float], float]) -> Callable[[Array], Array]:
    """A scalar function applied to every element."""
    vectorized: Any = np.vectorize(fn, otypes=[np.float64])

    def apply(x: Array) -> Array:
        return vectorized(x.astype(np.float64)).astype(x.dtype)

    return apply


erf = by_element(math.erf)
erfc = by_element(math.erfc)


def _lgamma(x: float) -> float:
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


lgamma = by_element(_lgamma)


def _erf_inv(x: float) -> float:
    if not -1.0 < x < 1.0:
        return math.copysign(math.inf, x) if abs(x) == 1.0 else math.nan
    return NormalDist().inv_cdf((x + 1.0) / 2.0) / math.sqrt(2.0)


erf_inv = by_element(_erf_inv)


def _digamma(x: float) -> float:
    # Recurrence up to 6, reflection below zero, then the asymptotic series.
    if x <= 0.0:
        if x == math.floor(x):
            return math.nan
        return _digamma(1.0 - x) - math.pi / math.tan(math.pi * x)
    total = 0.0
    while x < 6.0:
        total -= 1.0 / x
        x += 1.0
    inv = 1.0 / (x * x)
    series = inv * (1 / 12 - inv * (1 / 120 - inv * (1 / 252 - inv * (1 / 240 - inv / 132))))
    return total + math.log(x) - 0.5 / x - series


digamma = by_element(_digamma)


def logistic(x: Array) -> Array:
    one = np.ones((), x.dtype)
    with np.errstate(over="ignore"):
        return one / (one + np.exp(-x))


def one_minus_square(x: Array) -> Array:
    """(1 + x)(1 - x), which keeps the digits of x near one."""
    one = np.ones((), x.dtype)
    return (one + x) * (one - x)


def polynomial(x: Array, *coefficients: Array) -> Array:
    """The sum of coefficients[k] x^k, by Horner's rule."""
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def rsqrt(x: Array) -> Array:
    return (np.ones((), x.dtype) / np.sqrt(x)).astype(x.dtype)


def divide(x: Array, y: Array) -> Array:
    """Quotient; that of whole numbers is rounded towards zero."""
    if not np.issubdtype(x.dtype, np.integer):
        return x / y
    quotient = x // y
    return quotient + ((x % y != 0) & ((x < 0) != (y < 0))).astype(x.dtype)


def maximum(x: Array, y: Array) -> Array:
    """The larger of two numbers, NaN if one is; 0 is larger than -0."""
    return np.where((x == 0) & (y == 0), x + y, np.maximum(x, y))


def minimum(x: Array, y: Array) -> Array:
    """The smaller of two numbers, NaN if one is; -0 is smaller than 0."""
    zeros = (x == 0) & (y == 0) & (np.signbit(x) if x.dtype.kind not in "biu" else False)
    return np.where(zeros, x, np.minimum(x, y))


def largest(x: Array, axis: tuple[int, ...]) -> Array:
    """The largest number along some dimensions, as `maximum` has it."""
    found: Any = np.max(x, axis=axis)
    if x.dtype.kind in "biu":
        return found
    positive = np.any((x == 0) & ~np.signbit(x), axis=axis)
    return np.where((found == 0) & positive, np.zeros((), x.dtype), found)


def smallest(x: Array, axis: tuple[int, ...]) -> Array:
    """The smallest number along some dimensions, as `minimum` has it."""
    whole = x.dtype.kind in "biu"
    found: Any = np.min(x, axis=axis) if whole else np.negative(largest(np.negative(x), axis))
    return found


def round_to(attrs: Any, x: Array) -> Array:
    if attrs["rounding_method"] in ("TO_NEAREST_EVEN", 1):
        return np.round(x)
    return np.trunc(x + np.copysign(np.asarray(0.5, x.dtype), x))


def count_leading_zeros(x: Array) -> Array:
    bits = x.dtype.itemsize * 8
    width = np.zeros(x.shape, np.int64)
    rest = x.view(f"u{x.dtype.itemsize}").astype(np.uint64)
    while rest.any():
        width += rest != 0
        rest = rest >> np.uint64(1)
    return (bits - width).astype(x.dtype)


def population_count(x: Array) -> Array:
    # Of a negative number NumPy counts the bits of its absolute value.
    return np.bitwise_count(x.view(f"u{x.dtype.itemsize}"))


def shift_left(x: Array, y: Array) -> Array:
    bits = x.dtype.itemsize * 8
    amount = y.astype(np.int64)
    legal = (amount >= 0) & (amount < bits)
    return np.where(legal, x << np.where(legal, amount, 0).astype(x.dtype), 0).astype(x.dtype)


def shift_right_logical(x: Array, y: Array) -> Array:
    bits = x.dtype.itemsize * 8
    unsigned = x.view(f"u{x.dtype.itemsize}")
    amount = y.astype(np.int64)
    legal = (amount >= 0) & (amount < bits)
    shifted = unsigned >> np.where(legal, amount, 0).astype(unsigned.dtype)
    return np.where(legal, shifted, 0).astype(unsigned.dtype).view(x.dtype)


def shift_right_arithmetic(x: Array, y: Array) -> Array:
    bits = x.dtype.itemsize * 8
    amount = y.astype(np.int64)
    amount = np.where((amount < 0) | (amount >= bits), bits - 1, amount)
    return x >> amount.astype(x.dtype)


def multiply_high(x: Array, y: Array) -> Array:
    """The upper half of the product of whole numbers of up to 32 bits."""
    bits = x.dtype.itemsize * 8
    if bits > 32:
        raise IRError("the upper half of a product of 64-bit numbers has no meaning in NumPy here")
    wide = np.int64 if np.issubdtype(x.dtype, np.signedinteger) else np.uint64
    return ((x.astype(wide) * y.astype(wide)) >> wide(bits)).astype(x.dtype)


def _ordered(x: Array) -> Array:
    """Whole numbers in the total order of the floats: -NaN < -inf < ... < -0 < 0 < ... < NaN."""
    if x.dtype.kind in "iub":
        return x
    raw = x.view(f"i{x.dtype.itemsize}").astype(np.int64)
    low = np.int64(np.iinfo(f"i{x.dtype.itemsize}").min)
    return np.where(raw < 0, low - raw - 1, raw)


def equal_total(x: Array, y: Array) -> Array:
    return _ordered(x) == _ordered(y)


def less_total(x: Array, y: Array) -> Array:
    return _ordered(x) < _ordered(y)


def less_equal_total(x: Array, y: Array) -> Array:
    return _ordered(x) <= _ordered(y)


def select(which: Array, *cases: Array) -> Array:
    index = np.broadcast_to(which.astype(np.int64), cases[0].shape)
    return np.choose(index, cases)


def clamp(low: Array, x: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def to_complex(real: Array, imag: Array) -> Array:
    return real + 1j * imag


def convert(attrs: Any, x: Array) -> Array:
    dtype = numpy_dtype(attrs["new_dtype"])
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real
    if dtype.kind in "iu" and x.dtype.kind not in "biu":
        # XLA saturates where C leaves the result open.
        info = np.iinfo(dtype)
        x = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=info.max, neginf=info.min)
        inside = np.clip(np.trunc(x), float(info.min), float(info.max))
        return np.where(inside >= float(info.max), info.max, inside).astype(dtype)
    return x.astype(dtype)


def bitcast(attrs: Any, x: Array) -> Array:
    dtype = numpy_dtype(attrs["new_dtype"])
    if dtype.itemsize == x.dtype.itemsize:
        return x.view(dtype)
    x = np.ascontiguousarray(x)
    if dtype.itemsize < x.dtype.itemsize:
        return x[..., None].view(dtype)
    return x.view(dtype)[..., 0]


def reduce_precision(attrs: Any, x: Array) -> Array:
    """Rounds to nearest even with fewer bits in exponent and mantissa."""
    kept = int(attrs["mantissa_bits"])
    mantissa, exponent = np.frexp(x.astype(np.float64))
    rounded = np.ldexp(np.round(np.ldexp(mantissa, kept + 1)), exponent - kept - 1)
    limit = 2.0 ** (int(attrs["exponent_bits"]) - 1)
    largest = 2.0**limit if limit <= 1023 else math.inf
    smallest = 2.0 ** (2 - limit) if limit <= 1023 else 0.0
    rounded = np.where(np.abs(rounded) >= largest, np.copysign(np.inf, rounded), rounded)
    rounded = np.where(np.abs(rounded) < smallest, np.copysign(0.0, rounded), rounded)
    return np.where(np.isfinite(x), rounded, x).astype(x.dtype)
