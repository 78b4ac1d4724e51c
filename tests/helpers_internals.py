# pyright: basic
"""The parts of JAX that are private or not stable, for tests: nothing else imports such."""

from __future__ import annotations

from typing import Any

from jax._src import array
from jax._src.lax import lax
from jax.extend.core import Primitive as Primitive
from jax.extend.random import threefry_2x32 as threefry_2x32

ArrayImpl = array.ArrayImpl


def has_primitive(name: str) -> bool:
    """Whether this version of JAX has a primitive of `lax`."""
    return hasattr(lax, f"{name}_p")


def primitive(name: str) -> Any:
    """A primitive of `lax` that no public function binds."""
    return getattr(lax, f"{name}_p")
