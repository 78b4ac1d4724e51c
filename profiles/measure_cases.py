# pyright: basic
"""What is timed: matrix products, other operations and collectives, each with a body in JAX."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .schema import CollectiveRow, GemmRow, OpRow

Row = CollectiveRow | GemmRow | OpRow


@dataclass(frozen=True)
class Case:
    """A body to time.

    shapes: of the arrays of one device, the first of which is the one carried through the loop.
    body: from the local arrays to any array.
    row: from median seconds to the row of a table.
    groups: of the mesh (outer, inner) whose axes "o" and "i" the body may communicate over.
    passes: it goes once over so many arrays and writes as many new ones, as a step does, and is not
        repeated on one array that a cache holds.
    centred: values are of a normal distribution, else between 0.1 and 0.9. Products of others take
        less power, and run faster, than those of a model.
    """

    op: str
    dtype: str
    sizes: str
    shapes: tuple[tuple[int, ...], ...]
    body: Callable[..., jax.Array]
    row: Callable[[float], Row]
    indices: int = 0  # the last array holds indices below it
    groups: tuple[int, int] | None = None
    passes: int = 0
    centred: bool = False


def local_cases(quick: bool, *, accelerator: bool = False) -> Iterator[Case]:
    """Products and other operations, each device on its own.

    Args:
        quick: fewer sizes.
        accelerator: sizes that fill one, and pass its cache.
    """
    yield from _accelerator_products(quick) if accelerator else _host_products(quick)
    for power in (10, 16, 24) if quick else range(10, 27, 2):
        yield _op("copy", (1 << power,), lambda x: x + 1.0, 0, 8 << power)
    powers = (10, 16, 20) if quick else (10, 13, 16, 19, 22)
    for power in (*powers, 26) if accelerator else powers:
        n = 1 << power
        yield _op("elementwise", (n,), _chain, 32 * n, 8 * n)
        yield _op("transcendental", (n,), lambda x: jnp.tanh(x), n, 8 * n)
        yield _op("reduce", (n // 256, 256), lambda x: jnp.sum(x, axis=-1), n, 4 * n)
        shapes = ((n,),) * 4
        yield _op("optimizer", (n,), _adam, 12 * n, 20 * n, shapes=shapes)
    yield from _table_ops(quick)
    yield from _blocks(quick)


def _host_products(quick: bool) -> Iterator[Case]:
    sides = (16, 128, 768) if quick else (16, 64, 256, 1024)
    for b, m, n, k in itertools.product((1, 4) if quick else (1, 8), sides, sides, sides):
        yield _product("float32", b, m, n, k)
    for side in (64, 256, 1024):
        yield _product("bfloat16", 1, side, side, side)


def _accelerator_products(quick: bool) -> Iterator[Case]:
    sides = (256, 2048, 8192) if quick else (128, 512, 2048, 8192)
    for dtype in ("bfloat16", "float32"):
        for m, n, k in itertools.product(sides, sides, sides):
            yield _product(dtype, 1, m, n, k)
        for side in (64, 512):
            yield _product(dtype, 64, side, side, side)


def passing_cases() -> Iterator[Case]:
    """Arrays read in order and in another one, and written as new ones."""
    for side, count in ((64, 64), (256, 64), (1024, 4)):
        moved = 8 * side * side
        for op, body in (("copy", lambda x: x + 1.0), ("transpose", lambda x: x.T)):
            yield replace(_op(op, (side, side), body, 0, moved), passes=count)


def _table_ops(quick: bool) -> Iterator[Case]:
    """Rows of a table read and added to, by index."""
    for rows, picked, width in ((1024, 512, 128), (8192, 4096, 256)):
        moved = 8 * picked * width + 4 * picked
        yield _op(
            "gather", (rows, width), lambda x, i: x[i], 0, moved,
            shapes=((rows, width), (picked,)), indices=rows,
        )  # fmt: skip
        yield _op(
            "scatter", (rows, width), lambda x, u, i: x.at[i].add(u), picked * width,
            moved + 4 * rows * width, shapes=((rows, width), (picked, width), (picked,)),
            indices=rows,
        )  # fmt: skip
        if quick:
            return


def _blocks(quick: bool) -> Iterator[Case]:
    attention = ((2, 4, 64, 32), (4, 8, 128, 64), (2, 8, 512, 64))
    for b, h, s, d in attention[: 2 if quick else 3]:
        shape = (b, h, s, d)
        yield _op(
            "attention", shape, _attention, 4 * b * h * s * s * d, 4 * 4 * b * h * s * d,
            shapes=(shape,) * 3,
        )  # fmt: skip
    images = ((4, 16, 16, 3), (4, 32, 32, 3), (8, 32, 64, 1), (8, 32, 64, 3))
    for b, side, c, window in images[: 2 if quick else 4]:
        flops = 2 * b * side * side * c * c * window * window
        moved = 4 * (2 * b * side * side * c + window * window * c * c)
        yield _op(
            "convolution", (b, side, side, c), _conv, flops, moved,
            shapes=((b, side, side, c), (window, window, c, c)),
        )  # fmt: skip


def _product(dtype: str, b: int, m: int, n: int, k: int) -> Case:
    # The loop adds to an element of the array that it carries, which may copy it: the smaller one.
    x, w = (b, m, k), (b, k, n)
    turned = n < m
    return Case(
        "product", dtype, f"{b}x{m}x{n}x{k}", (w, x) if turned else (x, w),
        (lambda w, x: _flat_product(x, w)) if turned else _flat_product,
        partial(GemmRow, dtype, b, m, n, k), centred=True,
    )  # fmt: skip


def _flat_product(x: jax.Array, w: jax.Array) -> jax.Array:
    """A product as a vector, so that the loop does not feed it back until it overflows."""
    return jnp.einsum("bmk,bkn->bmn", x, w).reshape(-1)


def lasting_product(row: GemmRow) -> Case:
    """The product of a row of a table."""
    return _product(row.dtype, row.batch, row.m, row.n, row.k)


def _op(op: Any, sizes: tuple[int, ...], body: Callable[..., jax.Array], flops: int, moved: int, *,
        shapes: tuple[tuple[int, ...], ...] = (), indices: int = 0) -> Case:  # fmt: skip
    return Case(
        op, "float32", "x".join(map(str, sizes)), shapes or (sizes,), body,
        partial(OpRow, op, "float32", flops, moved), indices,
    )  # fmt: skip


def _chain(x: jax.Array) -> jax.Array:
    for _ in range(16):
        x = x * 0.5 + 0.25
    return x


def _adam(p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
    """The new parameter only: results that nobody reads would not be computed."""
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)


def _conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    found = lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return found.reshape(-1)


def collective_cases(count: int, quick: bool) -> Iterator[Case]:
    """Each kind over all devices, and over the halves of both axes of a 2-D mesh."""
    powers = (10, 16, 22) if quick else (8, 12, 16, 18, 20, 22, 24)
    groupings = [(1, count), *((2, count // 2) for _ in range(count >= 4))]
    for (outer, inner), axis in itertools.product(groupings, ("i", "o")):
        n, stride = (inner, 1) if axis == "i" else (outer, inner)
        if n == 1:
            continue
        for power, (kind, body, shrink) in itertools.product(powers, _KINDS):
            elements = (1 << power) // 4 // (n if shrink else 1)
            if elements % n or not elements:
                continue
            yield Case(
                kind, "float32", f"{n} stride {stride}, {1 << power} bytes", ((elements,),),
                partial(body, axis, n), partial(CollectiveRow, kind, n, stride, 1 << power),
                groups=(outer, inner),
            )  # fmt: skip


def _gathered(axis: str, n: int, x: jax.Array) -> jax.Array:
    return lax.all_gather(x, axis, tiled=True)


def _reduced(axis: str, n: int, x: jax.Array) -> jax.Array:
    return lax.psum(x, axis)[None]


def _scattered(axis: str, n: int, x: jax.Array) -> jax.Array:
    return lax.psum_scatter(x, axis, tiled=True)


def _exchanged(axis: str, n: int, x: jax.Array) -> jax.Array:
    return lax.all_to_all(x, axis, 0, 0, tiled=True)


def _shifted(axis: str, n: int, x: jax.Array) -> jax.Array:
    return lax.ppermute(x, axis, [(i, (i + 1) % n) for i in range(n)])


_KINDS: tuple[tuple[Any, Callable[..., jax.Array], bool], ...] = (
    ("all-gather", _gathered, True),
    ("all-reduce", _reduced, False),
    ("all-to-all", _exchanged, False),
    ("collective-permute", _shifted, False),
    ("reduce-scatter", _scattered, False),
)
