"""Arithmetic in a prime field and in real numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
PRIME = 2**31 - 1
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "tanh": np.tanh,
    "reciprocal": lambda a: 1 / a,
}


class NotTypedError(Exception):
    """The op does not take these shapes or degrees."""


class TooLargeError(NotTypedError):
    """A value is larger than numbers are tried on."""


class Numbers(Protocol):
    """Arithmetic: sums, products, functions, rounding to a shorter type (`cast`), fractions.

    lowest: below every number.
    """

    @property
    def lowest(self) -> float: ...

    def array(self, values: Array) -> Array: ...
    def add(self, a: Array, b: Array) -> Array: ...
    def mul(self, a: Array, b: Array) -> Array: ...
    def total(self, values: Array, axis: tuple[int, ...]) -> Array: ...
    def neg(self, a: Array) -> Array: ...
    def largest(self, values: Array, axis: tuple[int, ...]) -> Array: ...
    def relu(self, a: Array) -> Array: ...
    def function(self, name: str, a: Array) -> Array: ...
    def cast(self, a: Array) -> Array: ...
    def share(self, parts: int) -> Array: ...


class Reals:
    """Doubles; relu is relu. Small whole inputs keep sums exact."""

    lowest = -np.inf

    def array(self, values: Array) -> Array:
        return values.astype(np.float64)

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def mul(self, a: Array, b: Array) -> Array:
        return a * b

    def total(self, values: Array, axis: tuple[int, ...]) -> Array:
        return values.sum(axis=axis)

    def neg(self, a: Array) -> Array:
        return -a

    def largest(self, values: Array, axis: tuple[int, ...]) -> Array:
        return values.max(axis=axis)

    def relu(self, a: Array) -> Array:
        return np.maximum(a, 0.0)

    def function(self, name: str, a: Array) -> Array:
        with np.errstate(all="ignore"):
            return FUNCTIONS[name](a)

    def cast(self, a: Array) -> Array:
        return a.astype(np.float16).astype(np.float64)

    def share(self, parts: int) -> Array:
        return np.asarray(1.0 / parts)


@dataclass(frozen=True, slots=True)
class Field:
    """Numbers modulo a prime; relu is a function without structure, but relu(relu(x)) = relu(x).

    On a random half of the field the function is the identity, elsewhere it maps into that half.
    """

    salt: int

    @property
    def lowest(self) -> float:
        return -1

    def array(self, values: Array) -> Array:
        return values.astype(np.int64) % PRIME

    def add(self, a: Array, b: Array) -> Array:
        return (a + b) % PRIME

    def mul(self, a: Array, b: Array) -> Array:
        return (a * b) % PRIME

    def total(self, values: Array, axis: tuple[int, ...]) -> Array:
        return values.sum(axis=axis) % PRIME

    def neg(self, a: Array) -> Array:
        return -a % PRIME

    def largest(self, values: Array, axis: tuple[int, ...]) -> Array:
        return values.max(axis=axis)

    def relu(self, a: Array) -> Array:
        mixed = a ^ (a >> 7)
        image = (mixed * (2 * (self.salt % 10**6) + 12345) + self.salt) % PRIME
        # Even numbers are their own image; odd ones go to an even number.
        return np.where(a % 2 == 0, a, image - image % 2)

    def function(self, name: str, a: Array) -> Array:
        salt = (zlib.crc32(name.encode()) + self.salt) % 10**6
        return ((a ^ (a >> 9)) * (2 * salt + 1) + salt) % PRIME

    def cast(self, a: Array) -> Array:
        return self.function("cast", a)

    def share(self, parts: int) -> Array:
        return np.asarray(pow(parts, PRIME - 2, PRIME), dtype=np.int64)


def need(condition: bool, text: str) -> None:
    """Raises NotTypedError with the text where a condition does not hold."""
    if not condition:
        raise NotTypedError(text)
