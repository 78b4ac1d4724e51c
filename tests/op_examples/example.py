# pyright: basic
"""A call that traces to an op, and arrays to make such calls of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class Example:
    """A call whose trace contains the op `op`; `note` tells it from others of the same op."""

    op: str
    fn: Callable[..., Any]
    args: Arrays
    note: str = ""

    @property
    def label(self) -> str:
        return f"{self.op}:{self.note}" if self.note else self.op


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.abs(normal(*shape, seed=seed)) + np.float32(0.1)


def unit(*shape: int, seed: int = 0) -> np.ndarray:
    """Values inside (-1, 1)."""
    rng = np.random.default_rng([seed, *shape])
    return rng.uniform(-0.9, 0.9, size=shape).astype(np.float32)


def whole(*shape: int, high: int = 50, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(-high, high, shape).astype(np.int32)


def flags(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(0, 2, shape).astype(bool)


def indices(*shape: int, high: int, seed: int = 0) -> np.ndarray:
    """Start indices, one in eight out of range on either side."""
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(-max(1, high // 8), high + max(1, high // 8), shape).astype(np.int32)


def scaled(batch: int, m: int, n: int, k: int, block: int = 32) -> Arrays:
    """Operands of a product of 8-bit numbers with a scale for each block."""
    a, b = (normal(batch, rows, k).astype(jnp.float8_e4m3fn) for rows in (m, n))
    scales = (
        (2.0 ** whole(batch, rows, k // block, high=3)).astype(jnp.float8_e8m0fnu)
        for rows in (m, n)
    )
    return (a, b, *scales)


def batch_spd(*shape: int) -> np.ndarray:
    """Symmetric positive definite matrices."""
    x = normal(*shape)
    return x @ np.swapaxes(x, -1, -2) + 4 * np.eye(shape[-1], dtype=np.float32)


X = normal(4, 6)
Y = normal(4, 6, seed=1)
INTS, MORE_INTS = whole(4, 6), whole(4, 6, seed=1)
COMPLEX = (X + 1j * Y).astype(np.complex64)
PREDICATE = flags(4, 6)
