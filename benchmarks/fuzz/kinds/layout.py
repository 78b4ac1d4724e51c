# pyright: basic
"""Steps that move, repeat, join or take parts of tensors."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..program import Drawn, Kind, dtype_of


def _draw_reshape(d: Any) -> Drawn | None:
    x = d.value("movable")
    if x is None:
        return None
    left, shape = d.types[x].size, []
    for _ in range(d.rng.randint(0, 3)):
        n = d.rng.choice([n for n in range(1, left + 1) if left % n == 0]) if left else d.size()
        shape.append(n)
        left = left // n if left else 0
    shape.insert(d.rng.randint(0, len(shape)), left)
    return Drawn((x,), {"shape": shape})


def _draw_broadcast(d: Any) -> Drawn | None:
    x = d.value("movable")
    if x is None or d.types[x].size > 100:
        return None
    shape = list(d.types[x].shape)
    wide = [d.size() if n == 1 and d.rng.random() < 0.5 else n for n in shape]
    dims = list(range(len(shape)))
    for _ in range(d.rng.randint(0, 2)):
        at = d.rng.randint(0, len(wide))
        wide.insert(at, d.size())
        dims = [k + (k >= at) for k in dims]
    return Drawn((x,), {"shape": wide, "dims": dims})


def _draw_transpose(d: Any) -> Drawn | None:
    x = d.value("movable", least=2)
    if x is None:
        return None
    order = list(range(d.types[x].rank))
    d.rng.shuffle(order)
    return Drawn((x,), {"order": order})


def _draw_squeeze(d: Any) -> Drawn | None:
    x = d.find(
        lambda t: 1 in t.shape, lambda: d.types[0]._replace(shape=(1, d.size()), dtype="float32")
    ) if d.types else None  # fmt: skip
    if x is None:
        return None
    ones = [k for k, n in enumerate(d.types[x].shape) if n == 1]
    return Drawn((x,), {"dims": ones[: d.rng.randint(1, len(ones))]}) if ones else None


def _draw_concatenate(d: Any) -> Drawn | None:
    x = d.value("movable", least=1)
    if x is None:
        return None
    type_, dim = d.types[x], d.dim(x)
    shape = list(type_.shape)
    shape[dim] = shape[dim] if d.rng.random() < 0.6 else d.size()
    y = d.typed(shape, type_.dtype)
    parts = (x, y) if d.rng.random() < 0.5 else (y, x, x)
    return None if y is None else Drawn(parts, {"dim": dim})


def _draw_split(d: Any) -> Drawn | None:
    x = d.value("movable", least=1)
    if x is None:
        return None
    dim = d.dim(x)
    n = d.types[x].shape[dim]
    cuts = sorted(d.rng.randint(0, n) for _ in range(d.rng.randint(1, 2)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    return Drawn((x,), {"sizes": sizes, "dim": dim})


def _draw_stack(d: Any) -> Drawn | None:
    x = d.value("movable")
    if x is None or d.types[x].size > 200:
        return None
    y = d.typed(*d.types[x])
    return None if y is None else Drawn((x, y), {"dim": d.rng.randint(0, d.types[x].rank)})


def _draw_unstack(d: Any) -> Drawn | None:
    x = d.value("movable", least=1)
    if x is None:
        return None
    dim = d.dim(x)
    return Drawn((x,), {"dim": dim}) if 0 < d.types[x].shape[dim] <= 3 else None


def _draw_tile(d: Any) -> Drawn | None:
    x = d.value("data", least=1)
    reps = [] if x is None else [d.rng.choice((1, 1, 2, 3)) for _ in d.types[x].shape]
    return None if x is None or d.types[x].size > 60 else Drawn((x,), {"reps": reps})


def _draw_rev(d: Any) -> Drawn | None:
    x = d.value("movable", least=1)
    return None if x is None else Drawn((x,), {"dim": d.dim(x)})


def _draw_slice(d: Any) -> Drawn | None:
    x = d.value("movable", least=1)
    if x is None:
        return None
    starts, limits, strides = [], [], []
    for n in d.types[x].shape:
        whole = d.rng.random() < 0.5
        low = 0 if whole else d.rng.randint(0, n)
        starts.append(low)
        limits.append(n if whole else d.rng.randint(low, n))
        strides.append(d.rng.choice((1, 1, 1, 2, 3)))
    return Drawn((x,), {"starts": starts, "limits": limits, "strides": strides})


def _draw_pad(d: Any) -> Drawn | None:
    x = d.value("data", least=1)
    if x is None:
        return None
    config = []
    for n in d.types[x].shape:
        low, high = (d.rng.choice((0, 0, 1, 2, -1 if n > 2 else 0)) for _ in range(2))
        config.append((low, high, d.rng.choice((0, 0, 0, 1))))
    return Drawn((x,), {"config": config, "value": d.rng.choice((0, 1, 5))})


def _pad(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    (x,) = given
    return lax.pad(x, jnp.asarray(attrs["value"], x.dtype), [tuple(c) for c in attrs["config"]])


def _draw_new(d: Any) -> Drawn | None:
    shape = d.shape(d.rng.choice((1, 2, 3)))
    dtype = d.rng.choice(("float32", "int32", "uint8", "bfloat16", "int32", "float16"))
    return Drawn((), {"shape": shape, "dim": d.rng.randrange(len(shape)), "dtype": dtype})


def _iota(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return lax.broadcasted_iota(dtype_of(attrs["dtype"]), tuple(attrs["shape"]), attrs["dim"])


def _full(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return jnp.full(tuple(attrs["shape"]), attrs["dim"] + 1, dtype_of(attrs["dtype"]))


def _constant(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    """An array that the function captures."""
    shape = tuple(attrs["shape"])
    values = (np.arange(math.prod(shape)) % 7).reshape(shape).astype(dtype_of(attrs["dtype"]))
    return jnp.asarray(values) if attrs["dim"] else values + np.asarray(0, values.dtype)


def _draw_triangle(d: Any) -> Drawn | None:
    x = d.value("real", least=2)
    return None if x is None else Drawn((x,), {"k": d.rng.randint(-2, 2)})


def _draw_roll(d: Any) -> Drawn | None:
    x = d.value("data", least=1)
    return None if x is None else Drawn((x,), {"dim": d.dim(x), "by": d.rng.randint(-3, 5)})


KINDS = (
    Kind("broadcast", _draw_broadcast,
         lambda a, b, x: lax.broadcast_in_dim(x[0], tuple(a["shape"]), tuple(a["dims"])), 3),
    Kind("concatenate", _draw_concatenate, lambda a, b, x: lax.concatenate(x, a["dim"]), 2),
    Kind("constant", _draw_new, _constant, 0.6),
    Kind("full", _draw_new, _full, 0.6),
    Kind("iota", _draw_new, _iota, 0.8),
    Kind("pad", _draw_pad, _pad, 1.5),
    Kind("reshape", _draw_reshape, lambda a, b, x: jnp.reshape(x[0], a["shape"]), 4),
    Kind("rev", _draw_rev, lambda a, b, x: lax.rev(x[0], (a["dim"],)), 1),
    Kind("roll", _draw_roll, lambda a, b, x: jnp.roll(x[0], a["by"], a["dim"]), 0.6),
    Kind("slice", _draw_slice,
         lambda a, b, x: lax.slice(x[0], a["starts"], a["limits"], a["strides"]), 2),
    Kind("split", _draw_split, lambda a, b, x: lax.split(x[0], a["sizes"], a["dim"]), 1),
    Kind("squeeze", _draw_squeeze, lambda a, b, x: lax.squeeze(x[0], a["dims"]), 0.6),
    Kind("stack", _draw_stack, lambda a, b, x: jnp.stack(x, a["dim"]), 1),
    Kind("tile", _draw_tile, lambda a, b, x: jnp.tile(x[0], a["reps"]), 0.6),
    Kind("transpose", _draw_transpose, lambda a, b, x: lax.transpose(x[0], a["order"]), 2),
    Kind("triangle", _draw_triangle, lambda a, b, x: jnp.tril(x[0], a["k"]), 0.4),
    Kind("unstack", _draw_unstack, lambda a, b, x: jnp.unstack(x[0], axis=a["dim"]), 0.6),
)  # fmt: skip
