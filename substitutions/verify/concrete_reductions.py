"""Functions, reductions, broadcasts, batches and lookups on arrays, with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..rule import Op
from .arrays import PRIME, Array, Run, Tensor, need

FUNCTIONS = ("exp", "rsqrt", "tanh", "cast")


def _function(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    return (Tensor(run.numbers.function(op.kind, x.data), x.degrees, x.cuts),)


def _negated(x: Array) -> Array:
    return -x if x.dtype.kind == "f" else -x % PRIME


def _neg(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    return (Tensor(_negated(x.data), x.degrees, x.cuts),)


def _pair(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    x, y = args
    need(x.data.shape == y.data.shape, f"{op.kind} of {x.data.shape} and {y.data.shape}")
    need(x.degrees == y.degrees, f"{op.kind} of degrees {x.degrees} and {y.degrees}")
    if op.kind == "sub":
        data = run.numbers.add(x.data, _negated(y.data))
    else:
        data = run.numbers.mul(x.data, run.numbers.function("reciprocal", y.data))
    return (Tensor(data, x.degrees, (None,) * x.data.ndim),)


def _without(items: Sequence[object], axis: int) -> tuple[object, ...]:
    return (*items[:axis], *items[axis + 1 :])


def _reduction(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """A sum over a divided dimension leaves a partial sum for each chunk, as minor replicas."""
    (x,) = args
    axis = run.axis(op, x)
    degree = x.degrees[axis]
    degrees = (*x.degrees[:axis], *x.degrees[axis + 1 :])
    cuts = (*x.cuts[:axis], *x.cuts[axis + 1 :])
    if op.kind == "max":
        need(degree == 1, "the largest over a divided dimension")
        return (Tensor(x.data.max(axis=axis), degrees, cuts),)
    parts = [run.numbers.total(part, (axis,)) for part in np.split(x.data, degree, axis=axis)]
    data = np.stack(parts, axis=1).reshape(x.data.shape[0] * degree, *parts[0].shape[1:])
    return (Tensor(data, (degrees[0] * degree, *degrees[1:]), (None, *cuts[1:])),)


def _expand(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    x, like = args
    axis = run.axis(op, like)
    shape = _without(like.data.shape, axis)
    need(x.data.shape == shape, f"expand of {x.data.shape} to {like.data.shape}")
    need(x.degrees == _without(like.degrees, axis), "expand of other degrees")
    data = np.repeat(np.expand_dims(x.data, axis), like.data.shape[axis], axis=axis)
    return (Tensor(data, like.degrees, like.cuts),)


def _along(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    vector, like = args
    axis = run.axis(op, like)
    need(vector.data.ndim == 2 and not run.parallel, "along takes a vector, on one device")
    need(vector.data.shape[1] == like.data.shape[axis], "along another size")
    shape = [1] * like.data.ndim
    shape[axis] = vector.data.shape[1]
    data = np.broadcast_to(vector.data.reshape(shape), like.data.shape)
    return (Tensor(data, like.degrees, like.cuts),)


def _batch(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    x, y = args
    need(x.data.ndim == y.data.ndim == 4, "batch-matmul takes three dimensions")
    fits = x.data.shape[:2] == y.data.shape[:2] and x.data.shape[3] == y.data.shape[2]
    need(fits, f"batch-matmul of {x.data.shape} and {y.data.shape}")
    need(x.degrees[:2] == y.degrees[:2], "batch-matmul of other degrees")
    need(x.degrees[3] == 1 and y.degrees[2:] == (1, 1), "batch-matmul of divided matrices")
    products = run.numbers.mul(x.data[..., None], y.data[:, :, None])
    data = run.numbers.total(products, (3,))
    degrees = (*x.degrees[:3], 1)
    return (Tensor(data, degrees, (None, x.cuts[1], x.cuts[2], y.cuts[3])),)


def _gather(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    table, rows = args
    need(table.data.ndim == 3 and rows.data.ndim == 2, "gather takes a matrix and a vector")
    need(table.degrees[0] == rows.degrees[0] and table.degrees[1] == 1, "gather of other degrees")
    number = rows.data.astype(np.int64) % table.data.shape[1]
    data = np.take_along_axis(table.data, number[:, :, None], axis=1)
    degrees = (table.degrees[0], rows.degrees[1], table.degrees[2])
    return (Tensor(data, degrees, (None, rows.cuts[1], table.cuts[2])),)


REDUCTION_OPS: Mapping[str, Callable[[Op, Sequence[Tensor], Run], tuple[Tensor, ...]]] = {
    **dict.fromkeys(FUNCTIONS, _function),
    "neg": _neg,
    "sub": _pair,
    "div": _pair,
    "sum": _reduction,
    "max": _reduction,
    "expand": _expand,
    "along": _along,
    "batch-matmul": _batch,
    "gather": _gather,
}
