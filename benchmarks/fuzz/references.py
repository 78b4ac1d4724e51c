# pyright: basic
"""What a program computes unsharded: by jit, and op by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any


def by_jit(fn: Callable[..., Any], options: dict[str, Any], structs: Sequence[Any]) -> Any:
    """The function, compiled."""
    return jax.jit(fn).lower(*structs).compile(options)


def known_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those compile options that this version of XLA has."""

    def is_known(name: str) -> bool:
        try:
            by_jit(jnp.negative, {name: options[name]}, [jax.ShapeDtypeStruct((), np.float32)])
        except jax.errors.JaxRuntimeError:
            return False
        return True

    return {name: value for name, value in options.items() if is_known(name)}


def op_by_op(fn: Callable[..., Any], arguments: Sequence[Array]) -> list[Array]:
    """The function without jit: each operation compiled by itself."""
    with jax.disable_jit():
        return list(fn(*map(jnp.asarray, arguments)))


def plain(x: Any) -> np.ndarray[Any, Any]:
    """As NumPy holds it; keys as their words."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)
