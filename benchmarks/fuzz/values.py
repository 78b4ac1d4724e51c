# pyright: basic
"""Arguments of random programs: tame ones, and ones that break what is not exact."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .program import KEYS, Argument, Program, dtype_of

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray[Any, Any]]

SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-30, 300.0, -700.0)


def _quarters(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Whose sums and products are exact, so that any difference is an error."""
    return rng.integers(-16, 17, shape) / 4


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape)


def _sprinkled(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Quarters with NaN, infinities, negative zeros and large numbers among them."""
    plain, special = _quarters(rng, shape), rng.choice(SPECIAL, shape)
    return np.where(rng.random(shape) < 0.12, special, plain)


def _small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return rng.integers(-3, 9, shape)


def _far(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Indices out of any range among small ones."""
    return np.where(rng.random(shape) < 0.3, rng.integers(-40, 300, shape), _small(rng, shape))


def _extreme(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    ends = rng.choice((-(2**31), 2**31 - 1, -1, 0, 2**16, 255), shape)
    return np.where(rng.random(shape) < 0.15, ends, _far(rng, shape))


# Of each variant: how floats and whole numbers are drawn.
VARIANTS: tuple[tuple[Draw, Draw], ...] = (
    (_quarters, _small), (_sprinkled, _far), (_normal, _extreme),
)  # fmt: skip
FILLS: Mapping[str, Draw] = {
    draw.__name__[1:]: draw for draw in (_quarters, _normal, _sprinkled, _small, _far, _extreme)
}


def arguments(program: Program, variant: int) -> list[Any]:
    """Arrays for all arguments; the same for the same program and variant."""
    return [_array(item, variant, number) for number, item in enumerate(program.arguments)]


def _array(item: Argument, variant: int, number: int) -> Any:
    name = f"{variant}/{number}/{item.shape}/{item.dtype}"
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if item.dtype.startswith("key"):
        return _keys(rng, item)
    dtype = np.dtype(dtype_of(item.dtype))
    floats, whole = VARIANTS[variant % len(VARIANTS)]
    if dtype.kind == "b":
        return rng.random(item.shape) < 0.5
    if jnp.issubdtype(dtype, jnp.integer):
        return _wrapped(FILLS.get(item.fill, whole)(rng, item.shape), dtype)
    draw = FILLS.get(item.fill, floats)
    with np.errstate(all="ignore"):
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return (draw(rng, item.shape) + 1j * draw(rng, item.shape)).astype(dtype)
        return np.asarray(draw(rng, item.shape)).astype(dtype)


def _wrapped(x: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Whole numbers as the type holds them."""
    x = np.asarray(x, np.int64)
    if jnp.iinfo(dtype).bits < 8:
        low, high = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
        return np.clip(x, low, high).astype(dtype)
    return x.astype(dtype)


def _keys(rng: np.random.Generator, item: Argument) -> Any:
    seeds = rng.integers(0, 1000, math.prod(item.shape))
    keys = [jax.random.key(int(seed), impl=KEYS[item.dtype]) for seed in seeds]
    if not keys:
        words = jax.random.key_data(jax.random.key(0, impl=KEYS[item.dtype]))
        empty = jnp.zeros((*item.shape, *words.shape), words.dtype)
        return jax.random.wrap_key_data(empty, impl=KEYS[item.dtype])
    return jnp.stack(keys).reshape(item.shape)
