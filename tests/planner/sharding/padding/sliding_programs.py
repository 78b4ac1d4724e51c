# pyright: basic
"""Random programs that move elements along dimensions, by borders, steps and places."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
SIZES = (12, 16, 17, 24, 30, 33, 48, 64)
MOST = 200  # elements along a dimension


def drawn(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function of one or two arrays of small whole numbers."""
    rng = random.Random(seed)
    shape = (rng.choice(SIZES), rng.choice((3, 8, 16)))
    count, places = rng.randint(2, 7), [rng.randrange(1 << 30) for _ in range(8)]
    kernel = np.random.default_rng(seed).integers(-2, 3, (rng.randint(2, 5), 1, 1))
    args = np.random.default_rng(seed).integers(-4, 5, shape).astype("float32")

    def run(x: Array) -> Array:
        pool = [x * 1.0]
        for k in range(count):
            draw = random.Random(places[k])
            here = draw.choice(pool[-2:])
            made = draw.choice(STEPS)(draw, here, jnp.asarray(kernel, "float32"))
            if made is not None and min(made.shape) > 1 and max(made.shape) <= MOST:
                pool.append(_together(draw, made, pool))
        return tuple(pool[-2:])

    return run, (args,)


def _together(draw: random.Random, made: Array, pool: list[Array]) -> Array:
    """With another array of the same shape, if there is one."""
    alike = [x for x in pool if x.shape == made.shape]
    return jnp.maximum(made, draw.choice(alike) - 1.0) if alike and draw.random() < 0.5 else made


def _slice(draw: random.Random, x: Array, _w: Array) -> Array:
    n = x.shape[0]
    first, last, step = draw.randrange(4), n - draw.randrange(4), draw.choice((1, 1, 2, 3))
    return lax.slice_in_dim(x, first, last, step, 0) if last - first > step else None


def _columns(draw: random.Random, x: Array, _w: Array) -> Array:
    n = x.shape[1]
    return x[:, draw.randrange(2) : n - draw.randrange(2)] if n > 4 else None


def _pad(draw: random.Random, x: Array, _w: Array) -> Array:
    low, high, inside = draw.randrange(-2, 5), draw.randrange(-2, 5), draw.choice((0, 0, 1, 2))
    value = draw.choice((0.0, 0.0, 3.0))
    return lax.pad(x, jnp.float32(value), ((low, high, inside), (0, 0, 0)))


def _edges(draw: random.Random, x: Array, _w: Array) -> Array:
    return jnp.concatenate([x[: draw.randrange(1, 3)], 2.0 * x, x[-1:]][: draw.randint(2, 3)], 0)


def _set(draw: random.Random, x: Array, _w: Array) -> Array:
    low, high = draw.randrange(3), draw.randrange(3)
    inner = x[low : x.shape[0] - high] + 1.0
    at = x.at[low : x.shape[0] - high]
    return at.add(inner) if draw.random() < 0.5 else at.set(inner)


def _end(draw: random.Random, x: Array, _w: Array) -> Array:
    return x.at[draw.choice((0, -1, 1))].set(x[draw.choice((0, 1, -2))])


def _window(draw: random.Random, x: Array, _w: Array) -> Array:
    fill, function = draw.choice(((0.0, lax.add), (-np.inf, lax.max), (np.inf, lax.min)))
    size, step = draw.randint(1, 4), draw.choice((1, 1, 2))
    low, high = draw.randrange(size), draw.randrange(size)
    spread = draw.choice((1, 1, 2)) if x.shape[0] > 8 else 1
    found = lax.reduce_window(
        x, np.float32(fill), function, (size, 1), (step, 1), ((low, high), (0, 0)),
        window_dilation=(spread, 1),
    )  # fmt: skip
    return jnp.where(jnp.isfinite(found), found, 7.0)


def _convolve(draw: random.Random, x: Array, w: Array) -> Array:
    step, low, high = draw.choice((1, 1, 2)), draw.randrange(-1, 3), draw.randrange(-1, 3)
    inside = draw.choice((1, 1, 1, 2))
    return lax.conv_general_dilated(
        x.T[:, :, None], w, (step,), ((low, high),), (inside,), (draw.choice((1, 1, 2)),),
        dimension_numbers=("NHC", "HIO", "NHC"),
    )[..., 0].T  # fmt: skip


def _shift(draw: random.Random, x: Array, _w: Array) -> Array:
    by = draw.randrange(1, 3)
    return jnp.pad(x[:-by], ((by, 0), (0, 0))) if draw.random() < 0.5 else jnp.roll(x, by, 0)


def _totals(draw: random.Random, x: Array, _w: Array) -> Array:
    return lax.cummax(x, 0, reverse=draw.random() < 0.5)


def _scan(draw: random.Random, x: Array, _w: Array) -> Array:
    return lax.associative_scan(jnp.add, x, reverse=draw.random() < 0.5)


STEPS = (
    _slice, _slice, _columns, _pad, _edges, _set, _end, _window, _convolve, _shift, _totals, _scan,
)  # fmt: skip
