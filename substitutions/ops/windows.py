"""Pools, and the op that enlarges kernels. Windows are not divided."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..graph import Op, Ref
from ..numeric.arrays import Array, need
from ..numeric.devices import Run, Tensor, on_each
from ..symbolic.expr import ONE, ZERO, Expr, as_expr, call
from ..symbolic.joints import Parts
from ..symbolic.meaning import Indices, Meaning, ValueOf
from ..symbolic.normal import share
from ..symbolic.solve import Solver
from ..symbolic.types import (
    Dim,
    Type,
    Typing,
    computed,
    fit_devices,
    fit_rank,
)
from ..symbolic.values import (
    Factor,
    Index,
    Value,
    constant,
    scaled,
    summed,
    times,
)
from .record import SAME, RuleOp

AXES = ("h", "w")


def window_dims(typing: Typing, op: Op, image: Type, kernel: Sequence[Expr]) -> list[Dim]:
    """Height and width of the result of windows on an image."""
    return [
        Dim(_positions(typing.solver, op, dim.size, size, axis))
        for dim, size, axis in zip(image.dims[2:], kernel, AXES, strict=True)
    ]


def _positions(solver: Solver, op: Op, size: Expr, kernel: Expr, axis: str) -> Expr:
    """Number of windows along an axis."""
    stride = as_expr(op[f"stride_{axis}"])
    size, kernel = solver.resolve(size), solver.resolve(kernel)
    if op["padding"] == SAME:
        return call("ceil", size, stride)
    solver.at_least(size, kernel)
    return call("div", size - kernel, stride) + 1


def kernel_sizes(op: Op) -> list[Expr]:
    """Height and width that an op gives windows."""
    return [as_expr(op["kernel_h"]), as_expr(op["kernel_w"])]


def _pool_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    fit_rank(op, x, 4)
    fit_devices(typing, "rnc..", args)
    return (computed(x.replica, (*x.dims[:2], *window_dims(typing, op, x, kernel_sizes(op)))),)


def _enlarge_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (w,) = args
    fit_rank(op, w, 4)
    fit_devices(typing, "roi..", args)
    sizes = kernel_sizes(op)
    for dim, size in zip(w.dims[2:], sizes, strict=True):
        typing.solver.at_least(size, dim.size)
    return (computed(w.replica, (*w.dims[:2], *map(Dim, sizes))),)


def _window_joints(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found = m.joints(op.inputs[0])
    return [list(found[0]), list(found[1]), [], []]


def window_of(
    m: Meaning, op: Op, image: Type, kernel: Sequence[Expr], places: Indices
) -> tuple[list[Index], list[Index], tuple[Factor, ...], tuple[tuple[str, None], ...]]:
    """Positions in the image and in the kernel, where both are inside, and the labels of taps.

    Taps are counted from the element at the window's origin.
    """
    sources: list[Index] = []
    own: list[Index] = []
    inside: list[Factor] = []
    labels: list[tuple[str, None]] = []
    for place, axis, dim, size in zip(places, AXES, image.dims[2:], kernel, strict=True):
        name, tap = m.labels.make(None)
        source, at = place.at * op[f"stride_{axis}"] + tap, tap + _pad(op, size, dim.size, axis)
        sources.append(Index(source))
        own.append(Index(at))
        inside += [Factor("box", (source, dim.size)), Factor("box", (at, size))]
        labels.append((name, None))
    return sources, own, tuple(inside), tuple(labels)


def _pad(op: Op, kernel: Expr, size: Expr, axis: str) -> Expr:
    stride = as_expr(op[f"stride_{axis}"])
    return call("pad", kernel, stride, size) if op["padding"] == SAME else ZERO


def _avgpool(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """The mean over the whole window; what lies outside the image counts as 0."""
    (x,) = op.inputs
    sources, _, window, taps = window_of(m, op, m.parts.type(x), kernel_sizes(op), index[2:])
    inside = m.at(x, replica, (*index[:2], *sources))
    return scaled(summed(times(inside, window), taps), share(op["kernel_h"], op["kernel_w"]))


def _maxpool(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    (x,) = op.inputs
    sources, _, window, taps = window_of(m, op, m.parts.type(x), kernel_sizes(op), index[2:])
    inside = m.at(x, replica, (*index[:2], *sources))
    return times(constant(ONE), (Factor("max", (), "max", inside, taps, window),))


def _enlarge(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """The kernel in the middle of a larger one of zeros; the odd zero comes last."""
    (w,) = op.inputs
    places: list[Index] = []
    window: list[Factor] = []
    for place, dim, size in zip(index[2:], m.parts.type(w).dims[2:], kernel_sizes(op), strict=True):
        at = place.at - call("half", size - dim.size)
        places.append(Index(at))
        window.append(Factor("box", (at, dim.size)))
    return times(m.at(w, replica, (*index[:2], *places)), tuple(window))


def _padding(op: Op, size: int, kernel: int, axis: str) -> tuple[int, int, int]:
    """Results, zeros before and zeros after along one spatial axis."""
    stride = op[f"stride_{axis}"]
    if op["padding"] == SAME:
        return -(-size // stride), *same_padding(size, kernel, stride)
    need(kernel <= size, f"a window of {kernel} in {size}")
    return (size - kernel) // stride + 1, 0, 0


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Padding before and after, so that one result comes for every `stride` elements."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def windows_in(op: Op, image: Array, kernel: tuple[int, int], fill: float) -> Array:
    """[n, c, h, w] as [n, c, out_h, out_w, kernel_h, kernel_w]."""
    (oh, top, bottom), (ow, left, right) = (
        _padding(op, image.shape[2 + i], kernel[i], axis) for i, axis in enumerate(AXES)
    )
    filler = np.asarray(fill).astype(image.dtype)
    wide = np.pad(
        image, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=filler.item()
    )
    found = np.lib.stride_tricks.sliding_window_view(wide, kernel, axis=(2, 3))
    found = found[:, :, :: op["stride_h"], :: op["stride_w"]]
    return found[:, :, :oh, :ow]


def _compute_pool(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    need(x.rank == 4, "pooling of no images")
    data, degrees = on_each(op, "rnc.. -> rnc..", args, run, partial(_pooled, op, run))
    return (Tensor(data, degrees, (None, x.cuts[1], x.cuts[2], None, None)),)


def _pooled(op: Op, run: Run, image: Array) -> Array:
    kernel = (op["kernel_h"], op["kernel_w"])
    run.spend(image.size * kernel[0] * kernel[1])
    if op.kind == "avgpool":
        total = run.numbers.total(windows_in(op, image, kernel, 0), (4, 5))
        return run.numbers.mul(total, run.numbers.share(kernel[0] * kernel[1]))
    return run.numbers.largest(windows_in(op, image, kernel, run.numbers.lowest), (4, 5))


def _compute_enlarge(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (w,) = args
    need(w.rank == 4, "enlarging no kernel")
    need(w.degrees[3:] == (1, 1), "enlarging a kernel whose window is divided")
    extra = [op["kernel_h"] - w.local[2], op["kernel_w"] - w.local[3]]
    need(min(extra) >= 0, f"enlarging {w.local[2:]} to {op.params}")
    pads = [(e // 2, e - e // 2) for e in extra]
    zero = run.numbers.array(np.zeros(())).item()
    edges = (*((0, 0) for _ in range(w.data.ndim - 2)), *pads)
    data = np.pad(w.data, edges, constant_values=zero)
    return (Tensor(data, w.degrees, (None, w.cuts[1], w.cuts[2], None, None)),)


_SIZES = ("kernel_h", "kernel_w")


def _pool(name: str, value: ValueOf, *, mean: bool) -> RuleOp:
    return RuleOp(
        name=name, operands=(1, 1), params=(*_SIZES, "stride_h", "stride_w", "padding"), dims=4,
        sums=mean, fractions=mean, type=_pool_type, joints=_window_joints, value=value,
        compute=_compute_pool,
    )  # fmt: skip


WINDOWS = (
    _pool("avgpool", _avgpool, mean=True),
    _pool("maxpool", _maxpool, mean=False),
    RuleOp(
        name="enlarge", operands=(1, 1), params=_SIZES, dims=4, by_size=True, type=_enlarge_type,
        joints=_window_joints, value=_enlarge, compute=_compute_enlarge,
    ),
)  # fmt: skip
