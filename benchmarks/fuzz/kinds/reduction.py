# pyright: basic
"""Steps along dimensions: reductions, running ones, sorts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..program import Drawn, Kind, one_nan

REDUCE = {"max": "real", "min": "real", "prod": "real", "sum": "number", "and": "logic",
          "or": "logic", "xor": "int"}  # fmt: skip
ALONG = {"cumlogsumexp": "f32", "cummax": "real", "cummin": "real", "cumprod": "real",
         "cumsum": "number"}  # fmt: skip
WEIGHTS = {"reduce_sum": 4.0, "reduce_max": 1.5, "cumsum": 1.5}


def _reduce(name: str, sort: str) -> Kind:
    def draw(d: Any) -> Drawn | None:
        x = d.value(sort, least=1)
        if x is None:
            return None
        axes = [k for k in range(d.types[x].rank) if d.rng.random() < 0.6] or [d.dim(x)]
        return Drawn((x,), {"axes": axes})

    def run(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
        (x,) = given
        if name == "prod":
            x = jnp.clip(x, np.asarray(0 if x.dtype.kind == "u" else -2, x.dtype), 2)
        return getattr(lax, f"reduce_{name}")(x, axes=tuple(attrs["axes"]))

    return Kind(f"reduce_{name}", draw, run, WEIGHTS.get(f"reduce_{name}", 0.6))


def _one_dim(sort: str, smallest: int = 0) -> Callable[[Any], Drawn | None]:
    def draw(d: Any) -> Drawn | None:
        x = d.value(sort, least=1)
        if x is None:
            return None
        dim = d.dim(x)
        reverse = d.rng.random() < 0.4
        big_enough = d.types[x].shape[dim] >= smallest
        return Drawn((x,), {"dim": dim, "reverse": reverse}) if big_enough else None

    return draw


def _along(name: str, sort: str) -> Kind:
    def run(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
        (x,) = given
        if name == "cumprod":
            x = jnp.clip(x, np.asarray(0 if x.dtype.kind == "u" else -2, x.dtype), 2)
        return getattr(lax, name)(x, axis=attrs["dim"], reverse=attrs["reverse"])

    return Kind(name, _one_dim(sort), run, WEIGHTS.get(name, 0.4))


def _argmax(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    call = lax.argmin if attrs["reverse"] else lax.argmax
    return call(given[0], attrs["dim"], jnp.int32)


def _sort(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return lax.sort(given[0], dimension=attrs["dim"], is_stable=True)


def _draw_sort_keys(d: Any) -> Drawn | None:
    x = d.value("int32", least=1)
    y = None if x is None else d.typed(d.types[x].shape, d.dtype("real"))
    return None if x is None or y is None else Drawn((x, y), {"dim": d.dim(x)})


def _sort_keys(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    x, y = given
    return lax.sort((x % 3, y, x), dimension=attrs["dim"], num_keys=1, is_stable=True)


def _draw_top(d: Any) -> Drawn | None:
    x = d.value("real", least=1)
    if x is None or not d.types[x].shape[-1]:
        return None
    return Drawn((x,), {"k": d.rng.randint(1, d.types[x].shape[-1])})


def _draw_approx(d: Any) -> Drawn | None:
    found = _draw_top(d)
    return found if found and d.types[found.inputs[0]].dtype == "float32" else None


def _custom(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    (x,) = given
    init = np.float32(-np.inf)
    return lax.reduce(x, init, lambda a, b: jnp.maximum(a, b) + 0, (attrs["dim"],))


def _pairs(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    """The largest value and its place, as one reduction of two operands."""
    (x,) = given
    places = lax.broadcasted_iota(np.int32, x.shape, attrs["dim"])

    def larger(a: Any, b: Any) -> Any:
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    init = np.float32(-np.inf), np.int32(2**31 - 1)
    return lax.reduce((x, places), init, larger, (attrs["dim"],))


def _logsumexp(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return jax.nn.logsumexp(given[0], axis=attrs["dim"])


def _softmax(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return jax.nn.softmax(given[0], axis=attrs["dim"])


def _approx_top_k(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    # Which of equal elements it takes is open, and with it the indices and the gradient.
    del bodies
    return lax.approx_max_k(lax.stop_gradient(one_nan(given[0])), attrs["k"])[0]


KINDS = (
    *(_reduce(name, sort) for name, sort in REDUCE.items()),
    *(_along(name, sort) for name, sort in ALONG.items()),
    Kind("approx_top_k", _draw_approx, _approx_top_k, 0.2),
    Kind("argmax", _one_dim("real", 1), _argmax, 0.8),
    Kind("logsumexp", _one_dim("f32"), _logsumexp, 0.4),
    Kind("reduce", _one_dim("float32"), _custom, 0.3),
    Kind("reduce_pairs", _one_dim("float32"), _pairs, 0.3),
    Kind("softmax", _one_dim("float"), _softmax, 0.6),
    Kind("sort", _one_dim("plain"), _sort, 0.6),
    Kind("sort_keys", _draw_sort_keys, _sort_keys, 0.4),
    Kind("top_k", _draw_top, lambda a, b, x: lax.top_k(one_nan(x[0]), a["k"]), 0.4),
)
