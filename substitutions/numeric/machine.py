"""The arithmetic of machines, for the ops of rules: short floats, and whole numbers that wrap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ir import TensorType, dtype_kind, numpy_dtype

from .arrays import FUNCTIONS, Array

FLOATS = ("float16", "bfloat16", "float32")
WHOLE = ("int8", "int32")


@dataclass(frozen=True)
class Machine:
    """Numbers of one element type. Sums of short floats are added up in float32."""

    dtype: str

    @property
    def lowest(self) -> float:
        """What is below every number."""
        whole = dtype_kind(self.dtype) == "int"
        return int(np.iinfo(numpy_dtype(self.dtype)).min) if whole else -np.inf

    def _rounded(self, values: Array) -> Array:
        return np.asarray(values).astype(numpy_dtype(self.dtype))

    def array(self, values: Array) -> Array:
        return self._rounded(values)

    def add(self, a: Array, b: Array) -> Array:
        return self._rounded(a + b)

    def mul(self, a: Array, b: Array) -> Array:
        return self._rounded(a * b)

    def total(self, values: Array, axis: tuple[int, ...]) -> Array:
        wide: Any = values.dtype if dtype_kind(self.dtype) == "int" else np.float32
        return self._rounded(np.sum(values, axis=axis, dtype=wide))

    def neg(self, a: Array) -> Array:
        return np.negative(a)

    def largest(self, values: Array, axis: tuple[int, ...]) -> Array:
        return np.max(values, axis=axis)

    def relu(self, a: Array) -> Array:
        return np.where(a <= 0, np.zeros((), a.dtype), a)

    def function(self, name: str, a: Array) -> Array:
        """A function of wide numbers, rounded."""
        return self._rounded(FUNCTIONS[name](a.astype(np.float64)))

    def cast(self, a: Array) -> Array:
        short = "int8" if dtype_kind(self.dtype) == "int" else "bfloat16"
        return self._rounded(a.astype(numpy_dtype(short)))

    def share(self, parts: int) -> Array:
        return self._rounded(np.asarray(1.0 / parts))

    def type(self, shape: tuple[int, ...]) -> TensorType:
        """The type of an array of such numbers."""
        return TensorType(shape, self.dtype)


class Sizes:
    """Doubles, everything that is added up taken positive: the size of a sum before it cancels."""

    lowest = 0.0

    def array(self, values: Array) -> Array:
        return np.abs(values.astype(np.float64))

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def mul(self, a: Array, b: Array) -> Array:
        return a * b

    def total(self, values: Array, axis: tuple[int, ...]) -> Array:
        return values.sum(axis=axis)

    def neg(self, a: Array) -> Array:
        return a

    def largest(self, values: Array, axis: tuple[int, ...]) -> Array:
        return values.max(axis=axis)

    def relu(self, a: Array) -> Array:
        return a

    def function(self, name: str, a: Array) -> Array:
        return FUNCTIONS[name](a)

    def cast(self, a: Array) -> Array:
        return a

    def share(self, parts: int) -> Array:
        return np.asarray(1.0 / parts)
