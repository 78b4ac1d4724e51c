"""Arrays on which equal programs are most likely to show that they are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import ml_dtypes
import numpy as np

from ir import Graph, TensorType, dtype_kind, numpy_dtype

Array = np.ndarray[Any, Any]
# whole: small whole numbers, whose sums and products are exact.
# wild: numbers far apart, NaN, infinities, both zeros, the smallest and the largest numbers.
# finite: numbers of all signs and some sizes, sums of which cancel.
# holes: such numbers, NaN and infinities, none so large that a product of some overflows.
KINDS = ("whole", "wild", "finite", "holes")


class Limits(NamedTuple):
    """Of a type of floats: distance of 1 to the next, the extreme normal ones, the least at all."""

    eps: float
    least_normal: float
    largest: float
    least: float


_MOVES = ("broadcast_in_dim", "concatenate", "reshape", "slice", "split", "squeeze", "transpose")


def limits(dtype: str) -> Limits:
    """What floats of a type can say."""
    info = cast("Any", ml_dtypes).finfo(numpy_dtype(dtype))
    eps, tiny, largest = float(info.eps), float(info.tiny), float(info.max)
    return Limits(eps, tiny, largest, float(info.smallest_subnormal))


def arguments(graph: Graph, kind: str, seed: int) -> list[Array]:
    """Arrays for the inputs of a graph.

    Args:
        graph: the program that reads them.
        kind: one of `KINDS`.
        seed: equal seeds give equal arrays.
    """
    rows = _rows(graph)
    return [
        draw(item.type, kind, np.random.default_rng([seed, k]), rows.get(k))
        for k, item in enumerate(graph.inputs)
    ]


def draw(type_: TensorType, kind: str, rng: np.random.Generator, rows: int | None = None) -> Array:
    """An array of a type.

    Args:
        type_: shape and element type.
        kind: one of `KINDS`.
        rng: random numbers.
        rows: of the table that its elements are rows of, if they are.
    """
    dtype, shape = numpy_dtype(type_.dtype), type_.shape
    if dtype_kind(type_.dtype) == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype_kind(type_.dtype) == "int":
        return _integers(dtype, shape, kind, rng, rows)
    if dtype_kind(type_.dtype) == "complex":
        parts = [draw(TensorType(shape, "float32"), kind, rng) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(dtype)
    return _floats(type_, kind, rng)


def _integers(
    dtype: np.dtype[Any], shape: tuple[int, ...], kind: str, rng: np.random.Generator,
    rows: int | None,
) -> Array:  # fmt: skip
    info = ml_dtypes.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    if rows is not None:
        odd = [-1, -rows, -rows - 1, rows, rows + 1, 2 * rows, low, high]
        inside = rng.integers(0, max(rows, 1), shape)
        found = np.where(rng.random(shape) < 0.4, rng.choice(odd, shape), inside)
        return np.clip(found.astype(object), low, high).astype(dtype)
    if kind == "whole":
        return rng.integers(max(low, -2), 3, shape).astype(dtype)
    edges = np.array([low, high, low + 1, high - 1, 0, 1, max(low, -1)], object)
    full = rng.integers(low, high, shape, endpoint=True, dtype=np.uint64 if low == 0 else np.int64)
    found = np.where(rng.random(shape) < 0.5, rng.choice(edges, shape), full.astype(object))
    return found.astype(dtype)


def _floats(type_: TensorType, kind: str, rng: np.random.Generator) -> Array:
    dtype, shape = numpy_dtype(type_.dtype), type_.shape
    if kind == "whole":
        return rng.integers(-2, 3, shape).astype(dtype)
    some = rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape)
    if kind == "finite":
        # numbers and their opposites, so that sums cancel
        flat = some.reshape(-1)
        flat[1::2] = -flat[: 2 * (flat.size // 2) : 2] if flat.size > 1 else flat[1::2]
        return some.astype(dtype)
    odd = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0]
    if kind == "wild":
        _, tiny, largest, least = limits(type_.dtype)
        odd += [largest, -largest, largest / 2, tiny, least, -least]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(rng.random(shape) < 0.4, rng.choice(odd, shape), some).astype(dtype)


def _rows(graph: Graph) -> Mapping[int, int]:
    """Inputs whose elements are rows of a table, and how many it has."""
    found: dict[int, int] = {}
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        if node.op == "gather" and isinstance(node.inputs[1], int):
            found[node.inputs[1]] = graph.type_of(node.inputs[0]).shape[0]
        elif node.op in _MOVES:
            rows = [found[v] for v in graph.values_of(i) if v in found]
            if rows:
                found |= {o: rows[0] for o in node.inputs if isinstance(o, int)}
    return {v: n for v, n in found.items() if v < len(graph.inputs)}
