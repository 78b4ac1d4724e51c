# pyright: basic
"""Example calls of products, reductions and windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .example import (
    INTS,
    PREDICATE,
    Example,
    X,
    Y,
    normal,
    positive,
    scaled,
    whole,
)


def _products() -> list[Example]:
    def dot(dims: Any, **options: Any) -> Callable[..., Any]:
        return lambda x, y: lax.dot_general(x, y, dims, **options)

    def by_blocks(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
        numbers = (((2,), (2,)), ((0,), (0,)))
        scales = {"lhs_scale": a_scale, "rhs_scale": b_scale.astype(a_scale.dtype)}
        return lax.scaled_dot(
            a, b, dimension_numbers=numbers, preferred_element_type=jnp.float32, **scales
        )

    bf16 = jnp.bfloat16
    ragged = (normal(6, 4), normal(2, 4, 8), np.array([2, 3], np.int32))
    by_rows = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    in_blocks = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), (1,), (0,))
    by_blocks_of_rows = lax.RaggedDotDimensionNumbers((((0, 1), (0, 1)), ((), ())), (1,), ())
    return [
        Example("dot_general", jnp.matmul, (normal(4, 6), normal(6, 2))),
        Example("dot_general", jnp.matmul, (whole(4, 6), whole(6, 2)), "int"),
        Example(
            "dot_general",
            dot((((3, 1), (0, 2)), ((0,), (3,)))),
            (normal(2, 4, 6, 8), normal(8, 10, 4, 2)),
            "two contracted",
        ),
        Example("dot_general", dot((((), ()), ((), ()))), (normal(4), normal(6)), "outer"),
        Example("scaled_matmul_wrapper", jax.nn.scaled_matmul, scaled(2, 4, 6, 128)),
        Example("scaled_dot", by_blocks, (*scaled(2, 4, 6, 128)[:3], np.ones((2, 6, 1), bf16))),
        Example("scaled_dot", by_blocks, scaled(2, 4, 6, 128), "both"),
        Example("dot_general", dot((((0,), (0,)), ((), ()))), (normal(4), normal(4)), "inner"),
        Example(
            "dot_general",
            dot((((1,), (1,)), ((), ())), preferred_element_type=jnp.float32),
            (normal(4, 8).astype(jnp.bfloat16), normal(6, 8).astype(jnp.bfloat16)),
            "preferred",
        ),
        Example("ragged_dot_general", lax.ragged_dot, ragged),
        Example(
            "ragged_dot_general",
            lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, by_rows),
            (normal(6, 4), normal(6, 8), np.array([2, 4], np.int32)),
            "ragged contraction",
        ),
        Example(
            "ragged_dot_general",
            lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, in_blocks),
            (normal(2, 6, 4), normal(2, 4, 8), np.array([[2, 3], [6, 0]], np.int32)),
            "blocks",
        ),
        Example(
            "ragged_dot_general",
            lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, by_blocks_of_rows),
            (normal(2, 6, 4), normal(2, 6, 8), np.array([[2, 4], [1, 3]], np.int32)),
            "contraction of blocks",
        ),
    ]


def _reductions() -> list[Example]:
    def over(name: str, *axes: int) -> Callable[..., Any]:
        return lambda x: getattr(lax, f"reduce_{name}")(x, axes=axes)

    def along(name: str) -> Callable[..., Any]:
        return lambda x: getattr(lax, name)(x, axis=1)

    found = [
        Example(f"reduce_{name}", over(name, 0, 2), (normal(4, 6, 8),))
        for name in ("max", "min", "prod", "sum")
    ]
    found += [Example(f"reduce_{name}", over(name, 1), (PREDICATE,)) for name in ("and", "or")]
    found += [
        Example(name, along(name), (positive(4, 6),))
        for name in ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")
    ]
    average = lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b + a * b, (0,))  # noqa: E731
    return [
        *found,
        Example("approx_top_k", lambda x: lax.approx_max_k(x, 2), (normal(4, 8),)),
        Example("argmax", lambda x: lax.argmax(x, 1, jnp.int32), (X,)),
        Example("argmin", lambda x: lax.argmin(x, 0, jnp.int32), (X,)),
        Example("cumsum", lambda x: lax.cumsum(x, 0, reverse=True), (X,), "reverse"),
        Example("reduce", average, (X,)),
        Example("reduce_max", lambda x: lax.reduce_max(x, axes=(1,)), (INTS,), "int"),
        Example("reduce_sum", lambda x: lax.reduce_sum(x, axes=(0, 1)), (INTS,), "int"),
        Example("reduce_xor", lambda x: lax.reduce_xor(x, axes=(1,)), (INTS,)),
        Example("sort", lambda x: lax.sort(x, dimension=0), (X,)),
        Example("sort", lambda x, y: lax.sort((x % 3, y), num_keys=1), (INTS, Y), "keys"),
        Example("top_k", lambda x: lax.top_k(x, 2), (X,)),
    ]


def _windows() -> list[Example]:
    def window(fill: float, fn: Any, **options: Any) -> Callable[..., Any]:
        return lambda x: lax.reduce_window(
            x, np.float32(fill), fn, (1, 3, 1), (1, 2, 1), "SAME", **options
        )

    x = normal(4, 7, 6)
    largest = window(-np.inf, lax.max)
    return [
        Example("reduce_window", window(0, lambda a, b: a + b + a * b), (x,)),
        Example("reduce_window_max", largest, (x,)),
        Example("reduce_window_min", window(np.inf, lax.min), (x,)),
        Example("reduce_window_sum", window(0, lax.add), (x,)),
        Example(
            "reduce_window_sum", window(0, lax.add, window_dilation=(1, 2, 1)), (x,), "dilated"
        ),
        Example("select_and_gather_add", lambda x, t: jax.jvp(largest, (x,), (t,))[1], (x, x)),
        Example("select_and_scatter_add", jax.grad(lambda x: jnp.sum(largest(x) ** 2)), (x,)),
    ]


def reductions() -> list[Example]:
    return [*_products(), *_reductions(), *_windows()]
