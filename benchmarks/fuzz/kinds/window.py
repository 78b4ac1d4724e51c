# pyright: basic
"""Steps over windows: poolings with their derivatives, and convolutions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..program import Drawn, Kind

POOLS = {
    "max": (-np.inf, lax.max), "min": (np.inf, lax.min), "sum": (0, lax.add),
    "own": (0, lambda a, b: jnp.maximum(a, b) + 0),
}  # fmt: skip


def _draw_pool(d: Any) -> Drawn | None:
    x = d.value("float32", least=1)
    if x is None:
        return None
    shape = d.types[x].shape
    windows = [d.rng.choice((1, 1, 2, 3)) for _ in shape]
    strides = [d.rng.choice((1, 1, 2)) for _ in shape]
    if any(n < 3 for n, w in zip(shape, windows, strict=True) if w > 1):
        return None
    attrs = {"how": d.rng.choice(sorted(POOLS)), "windows": windows, "strides": strides,
             "padding": d.rng.choice(("SAME", "VALID"))}  # fmt: skip
    return Drawn((x,), attrs)


def _pool(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    fill, combine = POOLS[attrs["how"]]
    return lax.reduce_window(
        given[0], np.float32(fill), combine, tuple(attrs["windows"]), tuple(attrs["strides"]),
        attrs["padding"],
    )  # fmt: skip


def _pool_grad(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    called = {**attrs, "how": "max" if attrs["how"] == "own" else attrs["how"]}
    return jax.grad(lambda x: jnp.sum(_pool(called, bodies, [x]) * 2))(given[0])


def _pool_jvp(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    called = {**attrs, "how": "max" if attrs["how"] == "own" else attrs["how"]}
    return jax.jvp(lambda x: _pool(called, bodies, [x]), (given[0],), (given[0] + 1,))[1]


def _draw_conv(d: Any) -> Drawn | None:
    """A convolution of one or two spatial dimensions, perhaps with groups."""
    spatial = d.rng.choice((1, 1, 2))
    x = d.value(d.rng.choice(("float32", "float32", "bfloat16")), rank=2 + spatial)
    if x is None:
        return None
    batch, channels, *sizes = d.types[x].shape
    groups, batches = 1, 1
    if d.rng.random() < 0.4:
        divisors = [g for g in range(1, channels + 1) if channels % g == 0]
        groups = d.rng.choice(divisors) if divisors else 1
    elif d.rng.random() < 0.3:
        batches = d.rng.choice([g for g in range(1, batch + 1) if batch % g == 0] or [1])
    out = groups * batches * d.rng.choice((1, 2, *d.ways))
    kernel = [d.rng.choice((1, 2, 3)) for _ in range(spatial)]
    if any(n < 3 for n in sizes) or not channels or not batch:
        return None
    w = d.typed((out, channels // groups, *kernel), d.types[x].dtype)
    attrs = {
        "strides": [d.rng.choice((1, 1, 2)) for _ in sizes],
        "padding": d.rng.choice(("SAME", "VALID")) if d.rng.random() < 0.7 else [(1, 2)] * spatial,
        "rhs": [d.rng.choice((1, 1, 2)) for _ in sizes],
        "groups": groups, "batches": batches,
    }  # fmt: skip
    return None if w is None else Drawn((x, w), attrs)


def _conv(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    padding, kernel = attrs["padding"], given[1]
    # Whether padding is multiplied with the kernel depends on how XLA rewrites groups.
    kernel = jnp.where(jnp.isfinite(kernel), kernel, jnp.ones_like(kernel))
    return lax.conv_general_dilated(
        given[0], kernel, attrs["strides"],
        padding if isinstance(padding, str) else [tuple(p) for p in padding],
        rhs_dilation=attrs["rhs"], feature_group_count=attrs["groups"],
        batch_group_count=attrs["batches"],
    )  # fmt: skip


KINDS = (
    Kind("conv", _draw_conv, _conv, 1),
    Kind("pool", _draw_pool, _pool, 0.6),
    Kind("pool_grad", _draw_pool, _pool_grad, 0.4),
    Kind("pool_jvp", _draw_pool, _pool_jvp, 0.2),
)
