# pyright: basic
"""Example calls of shifts, linear algebra, random numbers and control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from ir.registered import RegisteredOp, register
from ir.registered_calls import as_op

from .example import (
    Example,
    X,
    batch_spd,
    normal,
    positive,
)


def _shifts() -> list[Example]:
    """Shifts, which JAX writes with slices, pads and concatenations."""
    field = normal(8, 6)
    return [
        Example("shift", lambda x: jnp.roll(x, 2, 0), (field,), "around the end"),
        Example("shift", lambda x: jnp.roll(x, -1, 1), (field,), "back around the end"),
        Example("shift", lambda x: jnp.pad(x[:-3], ((3, 0), (0, 0))), (field,), "zeros"),
        Example("shift", lambda x: lax.pad(x, 0.0, ((-1, 1, 0), (0, 0, 0))), (field,), "back"),
    ]


def _linalg() -> list[Example]:
    spd = batch_spd(2, 4, 4)
    lower, right = np.tril(spd), normal(2, 4, 6)
    linalg = lax.linalg

    def solve(**options: Any) -> Callable[..., Any]:
        return lambda a, b: linalg.triangular_solve(a, b, **options)

    found = [
        Example("fft", lambda x, f=f: f(x), (x,), f.__name__)
        for f, x in (
            (jnp.fft.fft, normal(4, 8)),
            (jnp.fft.rfft, normal(4, 8)),
            (jnp.fft.irfft, (normal(4, 5) + 1j * normal(4, 5, seed=1)).astype(np.complex64)),
            (jnp.fft.ifft2, normal(2, 4, 6).astype(np.complex64)),
        )
    ]
    diagonals = (normal(2, 4), positive(2, 4) + 4, normal(2, 4, seed=1))
    return [
        *found,
        Example("cholesky", lambda x: linalg.cholesky(x, symmetrize_input=False), (spd,)),
        Example("eig", lambda x: linalg.eig(x)[0], (spd,)),
        Example("eigh", lambda x: linalg.eigh(x, symmetrize_input=False), (spd,)),
        Example(
            "householder_product", linalg.householder_product, (right[:, :, :4], right[:, 0, :4])
        ),
        Example("lu", linalg.lu, (spd,)),
        Example(
            "lu_pivots_to_permutation",
            lambda p: linalg.lu_pivots_to_permutation(p, 6),
            (np.array([[1, 2, 3], [4, 2, 5]], np.int32),),
        ),
        Example("qr", lambda x: linalg.qr(x, full_matrices=False), (right,)),
        Example("svd", lambda x: linalg.svd(x, full_matrices=False), (right,)),
        Example("triangular_solve", solve(left_side=True, lower=True), (lower, right)),
        Example(
            "triangular_solve",
            solve(lower=True, transpose_a=True),
            (lower, np.swapaxes(right, 1, 2).copy()),
            "right",
        ),
        Example("tridiagonal_solve", linalg.tridiagonal_solve, (*diagonals, normal(2, 4, 6))),
    ]


def _random() -> list[Example]:
    key = jax.random.key(0)
    many = jax.random.split(key, 4)
    drawn = jax.vmap(lambda k: jax.random.bits(k, (6, 8)))
    return [
        Example("random_bits", lambda k: jax.random.bits(k, (4, 6)), (key,)),
        Example("random_bits", drawn, (many,), "keys"),
        Example("random_clone", jax.random.clone, (many,)),
        Example("random_fold_in", jax.vmap(jax.random.fold_in), (many, np.arange(4))),
        Example(
            "random_fold_in", jax.vmap(jax.random.fold_in, (None, 0)), (key, np.arange(4)), "n"
        ),
        Example("random_fold_in", jax.vmap(lambda k: jax.random.fold_in(k, 3)), (many,), "keys"),
        Example("random_gamma", lambda k, x: jax.random.gamma(k, x), (key, positive(4))),
        Example("random_seed", jax.vmap(jax.random.key), (np.arange(4, dtype=np.int32),)),
        Example("random_split", jax.vmap(lambda k: jax.random.split(k, 2)), (many,)),
        Example("random_unwrap", jax.random.key_data, (many,)),
        Example("random_wrap", jax.random.wrap_key_data, (jax.random.key_data(many),)),
        Example(
            "rng_bit_generator",
            lambda k: lax.rng_bit_generator(k, (4, 6)),
            (np.arange(4, dtype=np.uint32),),
        ),
        Example("rng_uniform", lambda: lax.rng_uniform(np.float32(0), np.float32(1), (4, 6)), ()),
    ]


def _control() -> list[Example]:
    def count(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))

    table = np.arange(24, dtype=np.float32).reshape(4, 6)
    captured = lambda x: jax.jit(lambda y: y + table)(x)  # noqa: E731
    by_platform = lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)  # noqa: E731
    same = jax.ShapeDtypeStruct((4, 6), np.float32)
    debugged = lambda x: (jax.debug.callback(lambda _: None, x), x)[1]  # noqa: E731
    printed = lambda x: (jax.debug.print("{}", x.sum()), x)[1]  # noqa: E731
    called = lambda x: io_callback(np.sin, same, x)  # noqa: E731
    return [
        Example("cond", lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), (X,)),
        Example("constant", captured, (X,)),
        Example("debug_callback", debugged, (X,)),
        Example("debug_print", printed, (X,)),
        Example("io_callback", called, (X,)),
        Example("platform_index", by_platform, (X,)),
        Example("pure_callback", lambda x: jax.pure_callback(np.sin, same, x), (X,)),
        Example("remat", lambda x: jax.checkpoint(jnp.sin)(x), (X,)),
        Example("scan", lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x), (X,)),
        Example("while", count, (X,)),
    ]


def _registered() -> list[Example]:
    def op(function: Any, name: str, factors: str) -> Callable[..., Any]:
        made = RegisteredOp(name, f"tests.{name}", factors)
        register(made)
        return as_op(function, made)

    product = op(lambda a, b: a @ b, "batched_product", "b m k+, b k+ n -> b m n")
    heads = op(
        lambda q, k: q * jnp.repeat(jnp.cumsum(k, 1), len(q) // len(k), 0),
        "heads",
        "(g r) s!, g s! -> (g r) s!",
    )
    both = op(lambda a: (a.max(1), 2 * a), "both", "m k> -> m, m k>")
    matrices = normal(2, 4, 6), normal(2, 6, 8)
    return [
        Example("registered_op", product, matrices, "sum"),
        Example(
            "registered_op", jax.vmap(product), (normal(2, 2, 4, 6), normal(2, 2, 6, 8)), "vmap"
        ),
        Example("registered_op", heads, (normal(4, 6), normal(2, 6)), "compound"),
        Example("registered_op", both, (X,), "maximum"),
    ]


def others() -> list[Example]:
    return [*_shifts(), *_linalg(), *_random(), *_control(), *_registered()]
