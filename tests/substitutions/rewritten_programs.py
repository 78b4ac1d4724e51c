# pyright: basic
"""A small JAX program for every rule of the catalogue that speaks of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

BF16 = jnp.bfloat16
Arrays = tuple[Any, ...]


def _a(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME")


def _rows(table: Any, index: Any) -> Any:
    return jnp.take(table, index, axis=0, mode="clip")


_IMAGE = (_a(2, 3, 8, 8), _a(5, 3, 3, 3), _a(5, 3, 3, 3), _a(5))
_XW = (_a(2, 3, 4), _a(4, 5, 6), _a(4, 5, 6), _a(4, 5, 6))
_CHAIN = (_a(3, 4), _a(4, 5), _a(5, 6), _a(4, 6))
_TABLE = (_a(7, 4), _i(2, 3), _a(4, 5), _i(2, 3))
_PAIR = (_a(3, 4), _a(3, 4), _a(5, 4), _a(5, 4))

# rule -> (function, arguments)
PROGRAMS: dict[str, tuple[Callable[..., Any], Arrays]] = {
    "merge-projections": (
        lambda x, w, v, u: (jnp.einsum("bsd,dhe->bshe", x, w), jnp.einsum("bsd,dhe->bshe", x, v)),
        _XW,
    ),
    "merge-three-projections": (
        lambda x, w, v, u: [jnp.einsum("bsd,dhe->bhse", x, p) for p in (w, v, u)], _XW,
    ),
    "merge-gate-and-up": (lambda x, w, v: jax.nn.relu(x @ w) * (x @ v),
                          (_a(2, 3, 4), _a(4, 6), _a(4, 6))),
    "split-projection": (lambda x, w, v: x @ jnp.concatenate([w, v], axis=1),
                         (_a(2, 3, 4), _a(4, 6), _a(4, 3))),
    "merge-rows": (lambda x, y, w: (x @ w, y @ w), (_a(2, 4), _a(3, 4), _a(4, 5))),
    "reassociate-right": (lambda x, y, z, w: (x @ y) @ z, _CHAIN),
    "reassociate-left": (lambda x, y, z, w: x @ (y @ z), _CHAIN),
    "factor-weight": (lambda x, w, v, u: x @ w[:, 0] + x @ v[:, 0], _XW),
    "factor-input": (lambda x, y, w: x @ w + y @ w, (_a(2, 4), _a(2, 4), _a(4, 5))),
    "expand-weight": (lambda x, w, v, u: x @ (w[:, 0] + v[:, 0]), _XW),
    "fold-low-rank": (lambda x, u, v, w: x @ w + (x @ u) @ v, _CHAIN),
    "unfold-low-rank": (lambda x, u, v, w: x @ (w + u @ v), _CHAIN),
    "split-k": (lambda x, y, w, v: jnp.concatenate([x, y], 1) @ jnp.concatenate([w, v], 0),
                (_a(2, 3), _a(2, 4), _a(3, 5), _a(4, 5))),
    "merge-k": (lambda x, y, w, v: x @ w + y @ v, (_a(2, 3), _a(2, 4), _a(3, 5), _a(4, 5))),
    "transpose-product": (lambda x, y, z, w: (x @ y).T, _CHAIN),
    "product-of-transposes": (lambda x, y: lax.dot(y.T, x.T), (_a(3, 4), _a(4, 5))),
    "reassociate-batch": (lambda x, y, z: (x @ y) @ z, (_a(2, 3, 4), _a(2, 4, 5), _a(2, 5, 6))),
    "reassociate-batch-left": (
        lambda x, y, z: x @ (y @ z), (_a(2, 3, 4), _a(2, 4, 5), _a(2, 5, 6)),
    ),
    "merge-batch-projections": (
        lambda x, w, v: (jnp.einsum("ecd,edf->ecf", x, w), jnp.einsum("ecd,edf->ecf", x, v)),
        (_a(2, 3, 4), _a(2, 4, 5), _a(2, 4, 5)),
    ),
    "merge-batch-k": (
        lambda x, w, y, v: x @ w + y @ v, (_a(2, 3, 4), _a(2, 4, 5), _a(2, 3, 6), _a(2, 6, 5)),
    ),
    "merge-convolution-inputs": (
        lambda x, w, y, v: _conv(x, w) + _conv(y, v),
        (_a(2, 3, 8, 8), _a(5, 3, 3, 3), _a(2, 4, 8, 8), _a(5, 4, 3, 3)),
    ),
    "scale-after-product": (lambda x, w, s: (x * s) @ w, (_a(2, 3, 4), _a(4, 5), _a())),
    "scale-into-weight": (lambda x, w: (x @ w) * 0.5, (_a(2, 3, 4), _a(4, 5))),
    "merge-scale-of-sum": (lambda x, y, s: x * s + y * s, (_a(3, 4), _a(3, 4), _a())),
    "scale-after-sum": (lambda x, s: jnp.sum(x * s, axis=1), (_a(3, 4, 5), _a())),
    "scale-after-batch": (lambda x, y: (x * 0.5) @ y, (_a(2, 3, 4), _a(2, 4, 5))),
    "column-gain-into-weight": (
        lambda x, w, g: (x @ w) * g, (_a(2, 3, 4), _a(4, 5), _a(1, 1, 5)),
    ),
    "norm-gain-into-weight": (lambda x, w, g: (x * g) @ w, (_a(2, 3, 4), _a(4, 5), _a(4))),
    "row-norm-after-product": (lambda x, w, r: (x * r[:, :, None]) @ w,
                               (_a(2, 3, 4), _a(4, 5), _a(2, 3))),
    "batch-norm-into-convolution": (lambda x, w, v, g: _conv(x, w) * g[None, :, None, None],
                                    _IMAGE),
    "scale-into-convolution": (lambda x, w, v, g: _conv(x, w) * 0.5, _IMAGE),
    "merge-convolutions": (lambda x, w, v, g: (_conv(x, w), _conv(x, v)), _IMAGE),
    "factor-convolution": (lambda x, w, v, g: _conv(x, w) + _conv(x, v), _IMAGE),
    "cast-before-transpose": (lambda x: x.T.astype(BF16), (_a(3, 4),)),
    "cast-after-transpose": (lambda x: x.astype(BF16).T, (_a(3, 4),)),
    "cast-parts": (lambda x, y, z, u: jnp.concatenate([x, z]).astype(BF16), _PAIR),
    "cast-whole": (lambda x, y, z, u: jnp.concatenate([x.astype(BF16), z.astype(BF16)]), _PAIR),
    "cast-rows": (lambda t, i, w, j: _rows(t, i).astype(BF16), _TABLE),
    "cast-less-rows": (lambda t, i, w, j: _rows(t.astype(BF16), i), _TABLE),
    "cast-before-expand": (
        lambda u: lax.broadcast_in_dim(u, (3, 5), (1,)).astype(BF16), (_a(5),),
    ),
    "transpose-twice": (
        lambda x: lax.transpose(lax.transpose(x, (1, 2, 0)), (1, 0, 2)), (_a(2, 3, 4),),
    ),
    "transpose-after-add": (lambda x, y, z, u: x.T + y.T, _PAIR),
    "transpose-after-mul": (lambda x, y, z, u: x.T * y.T, _PAIR),
    "transpose-after-relu": (lambda x: jax.nn.relu(x.T), (_a(3, 4),)),
    "transpose-after-exp": (lambda x: jnp.exp(x.T), (_a(3, 4),)),
    "transpose-after-scale": (lambda x, s: x.T * s, (_a(3, 4), _a())),
    "sum-of-transpose": (lambda x: jnp.sum(x.T, axis=1), (_a(3, 4),)),
    "max-of-transpose": (lambda x: jnp.max(x.T, axis=1), (_a(3, 4),)),
    "concat-of-transposes": (lambda x, y, z, u: jnp.concatenate([x.T, z.T], axis=1), _PAIR),
    "relu-whole": (
        lambda x, y, z, u: jnp.concatenate([jax.nn.relu(x), jax.nn.relu(z)]), _PAIR,
    ),
    "add-whole": (lambda x, y, z, u: jnp.concatenate([x + y, z + u]), _PAIR),
    "concat-geometry": (
        lambda x, y: jnp.concatenate(
            [jnp.concatenate([x, y], axis=1), jnp.concatenate([y, x], axis=1)], axis=0
        ),
        (_a(3, 4), _a(3, 4)),
    ),
    "split-of-concat": (
        lambda x, y, z, u: jnp.split(jnp.concatenate([x, z]), [3]), _PAIR,
    ),
    "sum-of-add": (lambda x, y: jnp.sum(x + y, axis=(0, 2)), (_a(2, 3, 4), _a(2, 3, 4))),
    "add-of-sums": (lambda x, y: jnp.sum(x, axis=1) + jnp.sum(y, axis=1), (_a(3, 4), _a(3, 4))),
    "sum-of-concat": (lambda x, y, z, u: jnp.sum(jnp.concatenate([x, z]), axis=0), _PAIR),
    "sum-of-neg": (lambda x: jnp.sum(-x, axis=1), (_a(3, 4),)),
    "factor-out-of-sum": (lambda x, u: jnp.sum(x * u[None, :], axis=0), (_a(3, 4), _a(4))),
    "merge-lookups": (lambda t, i, w, j: (_rows(t, i), _rows(t, j)), _TABLE),
    "lookup-after-product": (lambda t, i, w, j: _rows(t, i) @ w, _TABLE),
    "lookup-before-product": (lambda t, i, w, j: _rows(t @ w, i), _TABLE),
    "lookup-after-relu": (lambda t, i, w, j: jax.nn.relu(_rows(t, i)), _TABLE),
    "lookup-of-columns": (
        lambda x, y, i: _rows(jnp.concatenate([x, y], axis=1), i), (_a(7, 2), _a(7, 3), _i(4)),
    ),
    "merge-tables": (
        lambda x, y, i: jnp.concatenate([_rows(x, i), _rows(y, i)], axis=1),
        (_a(7, 2), _a(7, 3), _i(4)),
    ),
}  # fmt: skip


def numbers(structs: Arrays, seed: int = 0) -> list[Any]:
    """Arrays of the given shapes; integers are small enough to be rows of the tables."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 7, s.shape).astype(s.dtype)
        if jnp.issubdtype(s.dtype, jnp.integer)
        else rng.standard_normal(s.shape).astype(s.dtype)
        for s in structs
    ]
