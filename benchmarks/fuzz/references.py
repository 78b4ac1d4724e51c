# pyright: basic
"""What a program computes: by jit, op by op, and with the noise of rounding added everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir.trace import Traced
from planner.emit.constraints import changed_program

Array = Any
RUNS = 6
# Results on a coarse grid were hardly rounded: bits of the mantissa that are kept free.
FREE_BITS = {24: 12, 53: 30, 11: 4, 8: 3}


def by_jit(fn: Callable[..., Any], options: dict[str, Any], structs: Sequence[Any]) -> Any:
    """The unsharded function, compiled."""
    return jax.jit(fn).lower(*structs).compile(options)


def op_by_op(fn: Callable[..., Any], arguments: Sequence[Array]) -> list[Array]:
    """The function without jit: each operation compiled by itself."""
    with jax.disable_jit():
        return list(fn(*arguments))


def noise(
    traced: Traced, arguments: Sequence[Array], units: float = 1.0
) -> list[list[np.ndarray[Any, Any]]]:
    """Results of the program, several times, each floating value of it off by so many units."""

    def run(seed: Any, *arrays: Any) -> Any:
        count = iter(range(10**9))

        def off(x: Any, prefix: Any, number: int) -> Any:
            del prefix, number
            return _off(x, seed * 7.31 + next(count) * 1.77, units)

        return changed_program(traced.program, off)(*traced.program.consts, *arrays)

    compiled = jax.jit(run)
    leaves = jax.tree.leaves(tuple(arguments))
    return [[plain(y) for y in compiled(jnp.float32(seed), *leaves)] for seed in range(1, RUNS + 1)]


def _off(x: Array, seed: Any, units: float) -> Array:
    """`x` with relative errors of -1, 0 or 1 units, where it was rounded at all."""
    if not jnp.issubdtype(x.dtype, jnp.inexact) or not x.size or x.dtype.itemsize == 1:
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(_off(jnp.real(x), seed, units), _off(jnp.imag(x), seed + 0.5, units))
    info = jnp.finfo(x.dtype)
    places = lax.iota(np.float32, x.size).reshape(x.shape)
    sign = jnp.round(1.4 * jnp.sin(places * 12.9898 + seed)).astype(x.dtype)
    free = FREE_BITS[info.nmant + 1]
    grid = x * (2.0 ** (free // 2))
    coarse = (grid == jnp.round(grid)) & (
        jnp.abs(grid) < 2.0 ** (info.nmant + 1 - free + free // 2)
    )
    return jnp.where(coarse, x, x * (1 + units * info.eps * sign))


def plain(x: Any) -> np.ndarray[Any, Any]:
    """As NumPy holds it; keys as their words."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)
