# pyright: basic
"""Operations of one GPU, for `benchmarks one-gpu-ops`: a function and shapes for each.

Sizes are those of `benchmarks/data/one_gpu_h*_kernels.csv`, whose rows name them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Case = tuple[Callable[..., Any], tuple[Any, ...], int]  # function, shapes, limit of integers
WIDE = "float32"


def _shape(sizes: tuple[int, ...], dtype: str = WIDE) -> Any:
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype))


def _rms(x: Any) -> Any:
    wide = x.astype(WIDE)
    return (wide * lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5)).astype(x.dtype)


def _turned(x: Any) -> Any:
    four = x.reshape(16, 1024, 32, 128)
    return jnp.transpose(four, (0, 2, 1, 3)) + 0


def _chain(x: Any) -> Any:
    return reduce(lambda a, _: a * 0.5 + 0.25, range(32), x)


def _cast(x: Any) -> Any:
    return x.astype(WIDE if x.dtype == jnp.bfloat16 else jnp.bfloat16)


def _adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


ON_ROWS: dict[str, Callable[[Any], Any]] = {
    "copy": lambda x: x + 1.0, "add": lambda x: x + 1, "exp": jnp.exp, "tanh": jnp.tanh,
    "gelu": jax.nn.gelu, "gelu_erf": partial(jax.nn.gelu, approximate=False),
    "silu": lambda x: jax.nn.silu(x), "log": lambda x: jnp.log(jnp.abs(x)), "sin": jnp.sin,
    "softmax": lambda x: jax.nn.softmax(x.astype(WIDE), -1).astype(x.dtype), "rms": _rms,
    "ln": lambda x: jax.nn.standardize(x.astype(WIDE)).astype(x.dtype),
    "sum_rows": lambda x: jnp.sum(x, -1), "sum_cols": lambda x: jnp.sum(x, 0), "sum_all": jnp.sum,
    "max_rows": lambda x: jnp.max(x, -1), "argmax": lambda x: jnp.argmax(x, -1),
    "cumsum": lambda x: jnp.cumsum(x, -1), "transpose": lambda x: x.T + 0, "transpose4": _turned,
    "chain": _chain, "cast": _cast, "roll": lambda x: jnp.roll(x, 1, 0) + x,
    "pad": lambda x: jnp.pad(x, ((1, 1), (0, 0))), "concat": lambda x: jnp.concatenate([x, x], 1),
    "sort": lambda x: jnp.sort(x[:4096], -1),
}  # fmt: skip


def _looked_up(op: str, sizes: tuple[int, ...], dtype: str) -> Case:
    rows, width, count = sizes
    table, new, ids = (
        _shape((rows, width), dtype),
        _shape((count, width), dtype),
        _shape((count,), "int32"),
    )
    if op == "gather":
        return lambda t, i: t[i], (table, ids), rows
    if op == "scatter_into":
        return lambda t, u, i: t.at[i].add(u), (table, new, ids), rows
    zeros = partial(jnp.zeros, (rows, width), dtype)
    return lambda u, i: zeros().at[i].add(u), (new, ids), rows


def _loop(op: str, sizes: tuple[int, ...], dtype: str) -> Case:
    trips, side = sizes
    bodies = {"loop_small": lambda x: x * 1.0001 + 0.1, "loop_dot": lambda x: x @ x}
    chained = {"chain_dot": lambda x: x @ x, "chain_mixed": lambda x: jnp.tanh(x @ x)}
    shape = _shape((side,) if op == "loop_small" else (side, side), dtype)
    if op in bodies:
        return lambda x: lax.fori_loop(0, trips, lambda _, x: bodies[op](x), x), (shape,), 1
    return lambda x: reduce(lambda x, _: chained[op](x), range(trips), x), (shape,), 1


def _product(sizes: tuple[int, ...], dtype: str, wide: bool) -> Case:
    b, m, n, k = sizes
    if wide:
        product = partial(jnp.einsum, "bkm,bkn->bmn", preferred_element_type=jnp.float32)
        return product, (_shape((b, k, m), dtype), _shape((b, k, n), dtype)), 1
    return (
        partial(jnp.einsum, "bmk,bkn->bmn"), (_shape((b, m, k), dtype), _shape((b, k, n), dtype)), 1
    )  # fmt: skip


def _convolution(op: str, sizes: tuple[int, ...], dtype: str) -> Case:
    batch, side, channels, outputs, window, stride, groups = sizes
    given = _shape((batch, side, side, channels), dtype)
    kernel = _shape((window, window, channels // groups, outputs), dtype)

    def forward(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )  # fmt: skip

    result = jax.eval_shape(forward, given, kernel)
    if op == "conv_dx":
        back = lambda w, y: jax.linear_transpose(lambda x: forward(x, w), given)(y)[0]  # noqa: E731
        return back, (kernel, result), 1
    if op == "conv_dw":
        back = lambda x, y: jax.linear_transpose(lambda w: forward(x, w), kernel)(y)[0]  # noqa: E731
        return back, (given, result), 1
    return forward, (given, kernel), 1


def _attention(op: str, sizes: tuple[int, ...], dtype: str) -> Case:
    b, s, h, g, d, causal = sizes
    kernel: Any = partial(
        jax.nn.dot_product_attention, is_causal=bool(causal), implementation="cudnn"
    )
    q, kv = _shape((b, s, h, d), dtype), _shape((b, s, g, d), dtype)
    given = (q, kv, kv, _shape((1, h, s, s), dtype)) if "bias" in op else (q, kv, kv)
    if not op.endswith("grad"):
        return kernel, given, 1
    return lambda o, *given: jax.vjp(kernel, *given)[1](o), (q, *given), 1


def case(op: str, dtype: str, sizes: tuple[int, ...]) -> Case | None:
    """The function of a row, None for rows of operations that are not here."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    if op == "copy":  # sizes are bytes
        return ON_ROWS[op], (_shape((sizes[0] // 4,), dtype),), 1
    if op in ON_ROWS:
        return ON_ROWS[op], (_shape(sizes, dtype),), 1
    if op in ("gather", "scatter_add", "scatter_into"):
        return _looked_up(op, sizes, dtype)
    if op in ("loop_small", "loop_dot", "chain_dot", "chain_mixed"):
        return _loop(op, sizes, dtype)
    if op in ("gemm", "gemm_wide"):
        return _product(sizes, dtype, op == "gemm_wide")
    if op.startswith("conv"):
        return _convolution(op, sizes, dtype)
    if op.startswith("attention"):
        return _attention(op, sizes, dtype)
    found: dict[str, Case] = {
        "uniform": (lambda k: jax.random.uniform(k, sizes), (key,), 1),
        "bits8": (lambda k: jax.random.bits(k, sizes, jnp.uint8), (key,), 1),
        "dropout": (
            lambda k, x: jnp.where(jax.random.bernoulli(k, 0.9, sizes), x / 0.9, 0),
            (key, _shape(sizes, dtype)), 1,
        ),
        "adam": (_adam, (_shape(sizes, dtype),) * 4, 1),
        "take_along": (
            lambda x, i: jnp.take_along_axis(x, i[:, None], 1),
            (_shape(sizes, dtype), _shape(sizes[:1], "int32")), sizes[-1],
        ),
        "top_k": (lambda x: lax.top_k(x, sizes[-1]), (_shape(sizes[:2], dtype),), 1),
        "argsort": (jnp.argsort, (_shape(sizes, "int32"),), 64),
        "one_hot": (
            lambda i: jax.nn.one_hot(i, sizes[-1], dtype=dtype), (_shape(sizes[:1], "int32"),),
            sizes[-1],
        ),
    }  # fmt: skip
    return found.get(op)


def cases(rows: list[dict[str, str]]) -> Iterator[tuple[dict[str, str], Case]]:
    """The rows that have a function, each with it."""
    for row in rows:
        found = case(row["op"], row["dtype"], tuple(map(int, row["sizes"].split("x"))))
        if found is not None:
            yield row, found
