"""Ops on the arrays that logical devices hold, with NumPy.

An independent second meaning: nothing is shared with the symbolic one but the op names. A device
computes of its own arrays alone; which devices an op runs on is a line of letters, `on_each`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ..rule import RELU, SAME, Op, Side
from .arrays import Array, NotTypedError, TooLargeError, need
from .concrete_reductions import REDUCTION_OPS
from .devices import Cut, Run, Tensor, on_each, parallel, spread

MOST_ELEMENTS = 1_000_000  # of one value


def evaluate(
    side: Side, inputs: Mapping[str, Tensor], run: Run, shapes: Mapping[int, tuple[int, ...]]
) -> list[tuple[Tensor, ...]]:
    """Outputs of every op of a side.

    Args:
        side: the ops.
        inputs: by name.
        run: arithmetic.
        shapes: of constants (identity matrices and the like), by op.

    Raises:
        NotTypedError: if shapes or degrees do not fit.
    """
    made: list[tuple[Tensor, ...]] = []
    for i, op in enumerate(side):
        args = [inputs[r.name] if r.op < 0 else made[r.op][r.output] for r in op.inputs]
        run.spend(sum(x.data.size for x in args))
        if op.kind in _CONSTANTS:
            need(i in shapes, "a constant whose size is not known")
            shape = shapes[i]
            data = run.numbers.array(_CONSTANTS[op.kind](op, shape))
            if op.kind == "mean-kernel":
                data = run.numbers.mul(data, run.numbers.share(op["kernel_h"] * op["kernel_w"]))
            ones = (1,) * (len(shape) + 1)
            made.append((spread(data[None], ones, (None,) * len(ones)),))
        else:
            made.append(_OPS[op.kind](op, args, run))
        run.spend(sum(t.data.size for t in made[-1]))
        if any(t.data.size > MOST_ELEMENTS for t in made[-1]):
            raise TooLargeError(f"a {op.kind} is too large")
    return made


def apply(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """The outputs of one op that is no constant.

    Raises:
        NotTypedError: if shapes or degrees do not fit.
    """
    return _OPS[op.kind](op, args, run)


def _pointwise(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    a, b = args
    need(a.degrees == b.degrees, f"{op.kind} of degrees {a.degrees} and {b.degrees}")
    need(a.local == b.local, f"{op.kind} of {a.local} and {b.local} on a device")
    data = (run.numbers.add if op.kind == "add" else run.numbers.mul)(a.data, b.data)
    cuts = tuple(x if x == y else None for x, y in zip(a.cuts, b.cuts, strict=True))
    return (Tensor(data, a.degrees, cuts),)


def _scale(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """The factor has a replica on each device, replica by replica and then chunk by chunk."""
    x, s = args
    need(s.rank == 0, "the factor is not a scalar")
    devices = math.prod(x.degrees)
    need(s.degrees[0] == devices, f"a factor on {s.degrees[0]} devices, a tensor on {devices}")
    factors = s.data.reshape(*x.degrees, *(1 for _ in x.local))
    return (Tensor(run.numbers.mul(x.data, factors), x.degrees, x.cuts),)


def _relu(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    return (Tensor(run.numbers.relu(x.data), x.degrees, x.cuts),)


def _activated(op: Op, data: Array, run: Run) -> Array:
    return run.numbers.relu(data) if op.get("activation", 0) == RELU else data


def _transpose(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    need(x.rank == 2, "transpose of no matrix")
    order = (0, 2, 1)
    degrees, cuts = tuple(x.degrees[i] for i in order), tuple(x.cuts[i] for i in order)
    return (Tensor(x.data.transpose(0, 2, 1, 4, 3), degrees, cuts),)


def _product(run: Run, a: Array, b: Array) -> Array:
    """Product of a [n, c] and b [c, o]."""
    need(a.shape[1] == b.shape[0], f"product of {a.shape} and {b.shape}")
    run.spend(a.size * b.shape[1])
    return run.numbers.total(run.numbers.mul(a[:, :, None], b[None]), (1,))


def _turned_product(run: Run, x: Array, w: Array) -> Array:
    return _product(run, x, w.T)


def _matmul(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    a, b = args
    need(a.rank == b.rank == 2, "matmul of no matrices")
    data, degrees = on_each(op, "onc, nco -> cno", args, run, partial(_product, run))
    return (Tensor(_activated(op, data, run), degrees, (None, a.cuts[1], b.cuts[2])),)


def _linear(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    x, w = args
    need(x.rank == w.rank == 2, "linear of no matrices")
    data, degrees = on_each(op, "onc, noc -> cno", args, run, partial(_turned_product, run))
    return (Tensor(_activated(op, data, run), degrees, (None, x.cuts[1], w.cuts[1])),)


def _padding(op: Op, size: int, kernel: int, axis: str) -> tuple[int, int, int]:
    """Results, zeros before and zeros after along one spatial axis."""
    stride = op[f"stride_{axis}"]
    if op["padding"] == SAME:
        count = -(-size // stride)
        total = max((count - 1) * stride + kernel - size, 0)
        return count, total // 2, total - total // 2
    count = (size - kernel) // stride + 1
    need(kernel <= size, f"a window of {kernel} in {size}")
    return count, 0, 0


def _windows(op: Op, image: Array, kernel: tuple[int, int], fill: float) -> Array:
    """[n, c, h, w] as [n, c, out_h, out_w, kernel_h, kernel_w]."""
    (oh, top, bottom), (ow, left, right) = (
        _padding(op, image.shape[2 + i], kernel[i], axis) for i, axis in enumerate("hw")
    )
    filler = np.asarray(fill).astype(image.dtype)
    wide = np.pad(
        image, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=filler.item()
    )
    found = np.lib.stride_tricks.sliding_window_view(wide, kernel, axis=(2, 3))
    found = found[:, :, :: op["stride_h"], :: op["stride_w"]]
    return found[:, :, :oh, :ow]


def _conv(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    x, w = args
    need(x.rank == w.rank == 4, "convolution of no images")
    data, degrees = on_each(op, "onc.., noc.. -> cno..", args, run, partial(_image, op, run))
    cuts = (None, x.cuts[1], w.cuts[1], None, None)
    return (Tensor(_activated(op, data, run), degrees, cuts),)


def _image(op: Op, run: Run, image: Array, kernel: Array) -> Array:
    """The convolution on one device, grouped where the image has more channels."""
    channels, outs, ins = image.shape[1], kernel.shape[0], kernel.shape[1]
    need(channels % ins == 0, f"{ins} inputs of {channels} channels")
    groups = channels // ins
    need(outs % groups == 0, f"{outs} outputs in {groups} groups")
    seen = _windows(op, image, (kernel.shape[2], kernel.shape[3]), 0)
    each = outs // groups
    parts: list[Array] = []
    for o in range(outs):
        group = o // each
        block = seen[:, group * ins : (group + 1) * ins]
        weight = kernel[o][None, :, None, None]
        run.spend(block.size)
        parts.append(run.numbers.total(run.numbers.mul(block, weight), (1, 4, 5)))
    return np.stack(parts, axis=1)


def _pool(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    need(x.rank == 4, "pooling of no images")
    data, degrees = on_each(op, "rnc.. -> rnc..", args, run, partial(_pooled, op, run))
    return (Tensor(data, degrees, (None, x.cuts[1], x.cuts[2], None, None)),)


def _pooled(op: Op, run: Run, image: Array) -> Array:
    kernel = (op["kernel_h"], op["kernel_w"])
    run.spend(image.size * kernel[0] * kernel[1])
    if op.kind == "avgpool":
        total = run.numbers.total(_windows(op, image, kernel, 0), (4, 5))
        return run.numbers.mul(total, run.numbers.share(kernel[0] * kernel[1]))
    return run.numbers.largest(_windows(op, image, kernel, run.numbers.lowest), (4, 5))


def _enlarge(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
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


def _concat(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    axis = run.axis(op, args[0])
    first = args[0]
    total, cuts = first.local[axis - 1], list(first.cuts)
    need(first.degrees[axis] == 1, "concat along a dimension that is divided")
    for other in args[1:]:
        need(other.degrees == first.degrees, "concat of different ranks or degrees")
        for i in range(1, first.rank + 1):
            if i != axis:
                same = other.local[i - 1] == first.local[i - 1]
                need(same, f"concat of {first.local} and {other.local}")
                cuts[i] = cuts[i] if cuts[i] == other.cuts[i] else None
        cuts[axis] = Cut(total, cuts[axis], other.cuts[axis])
        total += other.local[axis - 1]
    data = np.concatenate([x.data for x in args], axis=first.rank + axis)
    return (Tensor(data, first.degrees, tuple(cuts)),)


def _split(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    axis = run.axis(op, x)
    need(x.degrees[axis] == 1, "split of a dimension that is divided")
    cut = x.cuts[axis]
    if cut is None:
        raise NotTypedError("split of a dimension that is no concatenation")
    need(0 < cut.at < x.local[axis - 1], f"split of {x.local[axis - 1]} at {cut.at}")
    parts = np.split(x.data, [cut.at], axis=x.rank + axis)
    return tuple(
        Tensor(part, x.degrees, (*x.cuts[:axis], history, *x.cuts[axis + 1 :]))
        for part, history in zip(parts, (cut.left, cut.right), strict=True)
    )


def _kernel(op: Op, shape: tuple[int, ...]) -> Array:
    outs, ins = shape[:2]
    data = np.zeros(shape)
    for o in range(outs):
        if op.kind == "mean-kernel":
            data[o, o % ins] = 1
        else:
            data[o, o % ins, op["kernel_h"] // 2, op["kernel_w"] // 2] = 1
    return data


def _identity(op: Op, shape: tuple[int, ...]) -> Array:
    return np.eye(shape[0], shape[1])


def _ones(op: Op, shape: tuple[int, ...]) -> Array:
    return np.ones(shape)


_CONSTANTS: Mapping[str, Callable[[Op, tuple[int, ...]], Array]] = {
    "ones": _ones,
    "identity-matrix": _identity,
    "identity-kernel": _kernel,
    "mean-kernel": _kernel,
}
_OPS: Mapping[str, Callable[[Op, Sequence[Tensor], Run], tuple[Tensor, ...]]] = {
    "add": _pointwise, "mul": _pointwise, "scale": _scale, "relu": _relu,
    "transpose": _transpose, "matmul": _matmul, "linear": _linear, "conv": _conv,
    "avgpool": _pool, "maxpool": _pool, "enlarge": _enlarge, "concat": _concat, "split": _split,
    "partition": parallel, "combine": parallel, "replicate": parallel, "reduce": parallel,
    **REDUCTION_OPS,
}  # fmt: skip
