# pyright: basic
"""What one device computes of its own arrays, by JAX and by NumPy: for doubles, op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

PADS = {0: "SAME", 1: "VALID"}
Pair = tuple[int, int]


@dataclass(frozen=True)
class Compute:
    """Functions of elements, products, grouped convolutions, and windows of images.

    image: of an image, a kernel, strides, 0 or 1 for padding, and the number of groups.
    average, largest: of an image, a window, strides and padding.
    """

    functions: Mapping[str, Callable[..., Any]]
    product: Callable[[Any, Any], Any]
    image: Callable[[Any, Any, Pair, int, int], Any]
    average: Callable[[Any, Pair, Pair, int], Any]
    largest: Callable[[Any, Pair, Pair, int], Any]


_PLAIN: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "mul": np.multiply, "sub": np.subtract, "div": np.divide, "neg": np.negative,
    "cast": lambda x: x.astype("float16").astype("float64"),
}  # fmt: skip


def _jax_image(x: Any, w: Any, strides: Pair, padding: int, groups: int) -> Any:
    return lax.conv_general_dilated(x, w, strides, PADS[padding], feature_group_count=groups)


def _jax_average(x: Any, window: Pair, strides: Pair, padding: int) -> Any:
    every = (1, 1, *window), (1, 1, *strides), PADS[padding]
    return lax.reduce_window(x, 0.0, lax.add, *every) / (window[0] * window[1])


def _jax_largest(x: Any, window: Pair, strides: Pair, padding: int) -> Any:
    every = (1, 1, *window), (1, 1, *strides), PADS[padding]
    return lax.reduce_window(x, -jnp.inf, lax.max, *every)


JAX = Compute(
    {**_PLAIN, "relu": jax.nn.relu, "exp": jnp.exp, "rsqrt": lax.rsqrt, "tanh": jnp.tanh},
    jnp.matmul, _jax_image, _jax_average, _jax_largest,
)  # fmt: skip


def _taps(x: Any, window: Pair, strides: Pair, padding: int, fill: float) -> list[Any]:
    """What every window holds at each of its places, row by row; the odd zero comes last."""
    counts, pads = [], []
    for size, k, step in zip(x.shape[2:], window, strides, strict=True):
        count = -(-size // step) if padding == 0 else (size - k) // step + 1
        over = max((count - 1) * step + k - size, 0) if padding == 0 else 0
        counts.append(count)
        pads.append((over // 2, over - over // 2))
    wide = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=fill)
    (h, w), (down, right) = counts, strides
    return [
        wide[:, :, i : i + (h - 1) * down + 1 : down, j : j + (w - 1) * right + 1 : right]
        for i in range(window[0])
        for j in range(window[1])
    ]


def _numpy_image(x: Any, w: Any, strides: Pair, padding: int, groups: int) -> Any:
    taps = _taps(x, w.shape[2:], strides, padding, 0.0)
    kernel = w.reshape(*w.shape[:2], -1)
    parts = []
    for g in range(groups):
        inside = slice(g * w.shape[1], (g + 1) * w.shape[1])
        own = np.split(kernel, groups)[g]
        each = (np.einsum("nchw,oc->nohw", t[:, inside], own[:, :, i]) for i, t in enumerate(taps))
        parts.append(sum(each))
    return np.concatenate(parts, axis=1)


def _numpy_average(x: Any, window: Pair, strides: Pair, padding: int) -> Any:
    return sum(_taps(x, window, strides, padding, 0.0)) / (window[0] * window[1])


def _numpy_largest(x: Any, window: Pair, strides: Pair, padding: int) -> Any:
    return np.max(_taps(x, window, strides, padding, -np.inf), axis=0)


NUMPY = Compute(
    {**_PLAIN, "relu": lambda x: np.maximum(x, 0), "exp": np.exp, "tanh": np.tanh,
     "rsqrt": lambda x: 1 / np.sqrt(x)},
    np.matmul, _numpy_image, _numpy_average, _numpy_largest,
)  # fmt: skip
