# pyright: basic
"""Steps that contract: products of all dimension numbers, ragged ones."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from ..program import Drawn, Kind


def _draw_dot(d: Any) -> Drawn | None:
    """A product with any batched and contracted dimensions, in any order."""
    x = d.value(d.rng.choice(("float32", "float32", "float32", "number")))
    if x is None:
        return None
    shape, dtype = d.types[x]
    dims = list(range(len(shape)))
    d.rng.shuffle(dims)
    batched = d.rng.choice((0, 0, 1)) if dims else 0
    contracted = d.rng.randint(0, min(len(dims) - batched, 2)) if dims else 0
    batch, contract = dims[:batched], dims[batched : batched + contracted]
    free = [d.size() for _ in range(d.rng.choice((0, 1, 1, 2)))]
    order = [("b", k) for k in batch] + [("c", k) for k in contract] + [("f", n) for n in free]
    d.rng.shuffle(order)
    other = [n if tag == "f" else shape[n] for tag, n in order]
    y = d.typed(other, dtype)
    where = {item: k for k, item in enumerate(order) if item[0] != "f"}
    attrs: dict[str, Any] = {
        "batch": [batch, [where["b", k] for k in batch]],
        "contract": [contract, [where["c", k] for k in contract]],
    }
    if dtype in ("bfloat16", "float16", "int8") and d.rng.random() < 0.6:
        attrs["preferred"] = "int32" if dtype == "int8" else "float32"
    return None if y is None else Drawn((x, y), attrs)


def _dot(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    (left, right), (rows, columns) = attrs["contract"], attrs["batch"]
    preferred = attrs.get("preferred")
    return lax.dot_general(
        given[0],
        given[1],
        ((left, right), (rows, columns)),
        preferred_element_type=jnp.dtype(preferred) if preferred else None,
    )


def _draw_matmul(d: Any) -> Drawn | None:
    """The usual product, which layers are made of."""
    x = d.value("float32", least=1)
    if x is None:
        return None
    w = d.typed((d.types[x].shape[-1], d.size()), "float32")
    return None if w is None else Drawn((x, w))


def _draw_ragged(d: Any) -> Drawn | None:
    x = d.value("float32", rank=2)
    if x is None:
        return None
    groups = d.rng.choice((1, 2, 3, *d.ways))
    w = d.typed((groups, d.types[x].shape[1], d.size()), "float32")
    sizes = d.typed((groups,), "int32")
    return None if w is None or sizes is None else Drawn((x, w, sizes))


def _ragged(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    """Group sizes are made to be some that sum to the rows at most."""
    x, w, sizes = given
    rows = x.shape[0]
    ends = jnp.sort(jnp.abs(sizes) % (rows + 1))
    return lax.ragged_dot(x, w, jnp.diff(ends, prepend=0).astype(jnp.int32))


def _ragged_contraction(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    x, _, sizes = given
    rows = x.shape[0]
    ends = jnp.sort(jnp.abs(sizes) % (rows + 1))
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    found = jnp.diff(ends, prepend=0).astype(jnp.int32)
    return lax.ragged_dot_general(x, x * 2, found, numbers)


KINDS = (
    Kind("dot", _draw_dot, _dot, 4),
    Kind("matmul", _draw_matmul, lambda a, b, x: jnp.matmul(*x), 3),
    Kind("ragged_dot", _draw_ragged, _ragged, 0.4),
    Kind("ragged_contraction", _draw_ragged, _ragged_contraction, 0.2),
)
