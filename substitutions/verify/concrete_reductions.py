"""Functions, reductions, broadcasts, batches and lookups on arrays, with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..rule import Op
from .arrays import Array, need
from .devices import Run, Tensor, on_each

FUNCTIONS = ("exp", "rsqrt", "tanh", "cast")


def _function(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    return (Tensor(run.numbers.function(op.kind, x.data), x.degrees, x.cuts),)


def _neg(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    return (Tensor(run.numbers.neg(x.data), x.degrees, x.cuts),)


def _pair(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    x, y = args
    need(x.degrees == y.degrees, f"{op.kind} of degrees {x.degrees} and {y.degrees}")
    need(x.local == y.local, f"{op.kind} of {x.local} and {y.local} on a device")
    if op.kind == "sub":
        data = run.numbers.add(x.data, run.numbers.neg(y.data))
    else:
        data = run.numbers.mul(x.data, run.numbers.function("reciprocal", y.data))
    return (Tensor(data, x.degrees, (None,) * len(x.cuts)),)


def _without(items: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*items[:axis], *items[axis + 1 :])


def _reduction(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """A sum over a divided dimension leaves a partial sum for each chunk, as minor replicas."""
    (x,) = args
    axis = run.axis(op, x)
    degrees = _without(x.degrees, axis)
    cuts = (None, *x.cuts[1:axis], *x.cuts[axis + 1 :])
    if op.kind == "max":
        need(x.degrees[axis] == 1, "the largest over a divided dimension")
        data = run.numbers.largest(x.data, (x.rank + axis,))
    else:
        data = run.numbers.total(x.data, (x.rank + axis,))
    near = np.moveaxis(data, axis, 1)
    replicas = x.degrees[0] * x.degrees[axis]
    data = near.reshape(replicas, *near.shape[2:])
    return (Tensor(data, (replicas, *degrees[1:]), cuts),)


def _expand(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """Minor replicas go to the chunks of the dimension, as `sum` would leave them."""
    x, like = args
    axis = run.axis(op, like)
    r, d = like.degrees[0], like.degrees[axis]
    need(x.local == _without(like.local, axis - 1), f"expand of {x.local} to {like.local}")
    need(x.degrees == (r * d, *_without(like.degrees[1:], axis - 1)), "expand of other degrees")
    chunks = np.moveaxis(x.data.reshape(r, d, *x.data.shape[1:]), 1, axis)
    place = like.rank + axis
    data = np.repeat(np.expand_dims(chunks, place), like.local[axis - 1], axis=place)
    return (Tensor(data, like.degrees, like.cuts),)


def _along(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    vector, like = args
    axis = run.axis(op, like)
    need(vector.rank == 1 and not run.parallel, "along takes a vector, on one device")
    need(vector.local[0] == like.local[axis - 1], "along another size")
    shape = [1] * like.data.ndim
    shape[0], shape[like.rank + axis] = len(vector.data), vector.local[0]
    data = np.broadcast_to(vector.data.reshape(shape), like.data.shape)
    return (Tensor(data, like.degrees, like.cuts),)


def _batch(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    x, y = args
    need(x.rank == y.rank == 3, "batch-matmul takes three dimensions")

    def product(a: Array, b: Array) -> Array:
        fits = a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1]
        need(fits, f"batch-matmul of {a.shape} and {b.shape} on a device")
        run.spend(a.size * b.shape[2])
        return run.numbers.total(run.numbers.mul(a[..., None], b[:, None]), (2,))

    data, degrees = on_each(op, "obnc, nbco -> cbno", args, run, product)
    return (Tensor(data, degrees, (None, x.cuts[1], x.cuts[2], y.cuts[3])),)


def _gather(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    table, rows = args
    need(table.rank == 2 and rows.rank == 1, "gather takes a matrix and a vector")

    def looked_up(values: Array, number: Array) -> Array:
        return values[number.astype(np.int64) % len(values)]

    data, degrees = on_each(op, "n.c, cn -> .nc", args, run, looked_up)
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
