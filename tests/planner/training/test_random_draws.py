# pyright: basic
"""A part's random numbers are its slice of the whole draw, by any generator."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir import jax_internals as internals
from planner.training import random_draws as draws
from planner.training.edits import Draw

COUNT = 3


def equation(keys: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    def bits(k: Any) -> Any:
        return jax.random.bits(k, shape, dtype)

    for _ in range(keys.ndim):
        bits = jax.vmap(bits)
    (eqn,) = jax.make_jaxpr(bits)(keys).eqns
    return eqn.params["jaxpr"].eqns[0] if eqn.primitive.name in ("jit", "pjit") else eqn


CASES = {
    "32 bits": (1 << 32, jnp.uint32, "threefry2x32"),
    "numbers of two words": (1, jnp.uint32, "threefry2x32"),
    "8 bits": (1 << 32, jnp.uint8, "threefry2x32"),
    "another generator": (1 << 32, jnp.uint32, "rbg"),
}


@pytest.mark.parametrize("name", CASES)
def test_slices_of_the_whole_draw(monkeypatch, name: str) -> None:
    word, dtype, kind = CASES[name]
    monkeypatch.setattr(draws, "WORD", word)
    batch, keys = 6, jax.random.key(1, impl=kind)
    for draw, width in ((Draw(0, 1, 1), 4), (Draw(0, 1, 5), 3), (Draw(1, 2, 2), 3)):
        sizes = [batch * draw.outer * draw.inner, width]
        whole = tuple(sizes if draw.dim == 0 else sizes[::-1])
        local = tuple(n // COUNT if d == draw.dim else n for d, n in enumerate(whole))
        large, small = (equation(keys, shape, dtype) for shape in (whole, local))
        every = np.asarray(internals.run_equation(large, [keys], {})[0])
        spread = [*whole]
        spread[draw.dim : draw.dim + 1] = [draw.outer, batch // COUNT, COUNT, draw.inner]
        part = jax.jit(partial(draws.drawn, small, large, [keys], draw, COUNT))
        for number in range(COUNT):
            wanted = every.reshape(spread).take(number, draw.dim + 2).reshape(local)
            np.testing.assert_array_equal(np.asarray(part(jnp.int32(number))[0]), wanted)
