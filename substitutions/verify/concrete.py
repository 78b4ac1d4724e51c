"""Ops on arrays, with NumPy.

An independent second meaning: nothing is shared with the symbolic one but the op names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..rule import RELU, SAME, Op, Side
from .arrays import Array, Cut, NotTypedError, Run, Tensor, need
from .concrete_reductions import REDUCTION_OPS

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
        if op.kind in _CONSTANTS:
            shape = shapes[i]
            data = run.numbers.array(_CONSTANTS[op.kind](op, shape))
            if op.kind == "mean-kernel":
                data = run.numbers.mul(data, run.numbers.share(op["kernel_h"] * op["kernel_w"]))
            made.append((Tensor(data[None], (1,) * (len(shape) + 1), (None,) * (len(shape) + 1)),))
        else:
            made.append(_OPS[op.kind](op, args, run))
        need(all(t.data.size <= MOST_ELEMENTS for t in made[-1]), f"a {op.kind} is too large")
    return made


def apply(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """The outputs of one op that is no constant.

    Raises:
        NotTypedError: if shapes or degrees do not fit.
    """
    return _OPS[op.kind](op, args, run)


def _pointwise(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    a, b = args
    need(a.data.shape == b.data.shape, f"{op.kind} of {a.data.shape} and {b.data.shape}")
    need(a.degrees == b.degrees, f"{op.kind} of degrees {a.degrees} and {b.degrees}")
    data = (run.numbers.add if op.kind == "add" else run.numbers.mul)(a.data, b.data)
    cuts = tuple(x if x == y else None for x, y in zip(a.cuts, b.cuts, strict=True))
    return (Tensor(data, a.degrees, cuts),)


def _scale(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    x, s = args
    need(s.data.ndim == 1, "the factor is not a scalar")
    return (Tensor(run.numbers.mul(x.data, s.data[0]), x.degrees, x.cuts),)


def _relu(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    return (Tensor(run.numbers.relu(x.data), x.degrees, x.cuts),)


def _activated(op: Op, data: Array, run: Run) -> Array:
    return run.numbers.relu(data) if op.get("activation", 0) == RELU else data


def _transpose(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    need(x.data.ndim == 3, "transpose of no matrix")
    order = (0, 2, 1)
    degrees, cuts = tuple(x.degrees[i] for i in order), tuple(x.cuts[i] for i in order)
    return (Tensor(x.data.transpose(order), degrees, cuts),)


def _product(a: Array, b: Array, run: Run) -> Array:
    """Product of a [n, c] and b [c, o]."""
    return run.numbers.total(run.numbers.mul(a[:, :, None], b[None]), (1,))


def _matmul(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    a, b = args
    need(a.data.ndim == b.data.ndim == 3, "matmul of no matrices")
    need(a.data.shape[2] == b.data.shape[1], f"matmul of {a.data.shape} and {b.data.shape}")
    data = _product(a.data[0], b.data[0], run)[None]
    return (Tensor(_activated(op, data, run), (1, 1, 1), (None, a.cuts[1], b.cuts[2])),)


def _linear(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """Every device (r, chunk of n, chunk of o) multiplies its own parts."""
    x, w = args
    need(x.data.ndim == w.data.ndim == 3, "linear of no matrices")
    need(x.data.shape[2] == w.data.shape[2], f"linear of {x.data.shape} and {w.data.shape}")
    (xr, xn, xc), (wr, wo, wc) = x.degrees, w.degrees
    need((xr, xn, xc) == (wo, wr, wc), f"linear of degrees {x.degrees} and {w.degrees}")
    n, o, c = (x.data.shape[1] // xn, w.data.shape[1] // wo, x.data.shape[2] // xc)
    data = run.numbers.array(np.zeros((xc, x.data.shape[1], w.data.shape[1])))
    for r in range(xc):
        for i in range(xn):
            for j in range(wo):
                part = x.data[j, i * n : (i + 1) * n, r * c : (r + 1) * c]
                weight = w.data[i, j * o : (j + 1) * o, r * c : (r + 1) * c]
                block = _product(part, weight.T, run)
                data[r, i * n : (i + 1) * n, j * o : (j + 1) * o] = block
    return (Tensor(_activated(op, data, run), (xc, xn, xr), (None, x.cuts[1], w.cuts[1])),)


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
    need(x.data.ndim == w.data.ndim == 5, "convolution of no images")
    image, kernel = x.data[0], w.data[0]
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
        parts.append(run.numbers.total(run.numbers.mul(block, weight), (1, 4, 5)))
    data = np.stack(parts, axis=1)[None]
    cuts = (None, x.cuts[1], w.cuts[1], None, None)
    return (Tensor(_activated(op, data, run), (1,) * 5, cuts),)


def _pool(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    need(x.data.ndim == 5, "pooling of no images")
    kernel = (op["kernel_h"], op["kernel_w"])
    if op.kind == "avgpool":
        total = run.numbers.total(_windows(op, x.data[0], kernel, 0), (4, 5))
        data = run.numbers.mul(total, run.numbers.share(kernel[0] * kernel[1]))
    else:
        lowest = -np.inf if x.data.dtype.kind == "f" else -1  # field elements are not negative
        data = _windows(op, x.data[0], kernel, lowest).max(axis=(4, 5))
    return (Tensor(data[None], (1,) * 5, (None, x.cuts[1], x.cuts[2], None, None)),)


def _enlarge(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (w,) = args
    need(w.data.ndim == 5, "enlarging no kernel")
    extra = [op["kernel_h"] - w.data.shape[3], op["kernel_w"] - w.data.shape[4]]
    need(min(extra) >= 0, f"enlarging {w.data.shape[3:]} to {op.params}")
    pads = [(e // 2, e - e // 2) for e in extra]
    data = np.pad(w.data, ((0, 0), (0, 0), (0, 0), *pads))
    return (Tensor(data, w.degrees, (None, w.cuts[1], w.cuts[2], None, None)),)


def _concat(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    axis = run.axis(op, args[0])
    first = args[0]
    total, cuts = first.data.shape[axis], list(first.cuts)
    need(first.degrees[axis] == 1, "concat along a dimension that is divided")
    for other in args[1:]:
        need(other.data.ndim == first.data.ndim, "concat of different ranks")
        need(other.degrees == first.degrees, "concat of different degrees")
        for i in range(first.data.ndim):
            if i != axis:
                same = other.data.shape[i] == first.data.shape[i]
                need(same, f"concat of {first.data.shape} and {other.data.shape}")
                cuts[i] = cuts[i] if cuts[i] == other.cuts[i] else None
        cuts[axis] = Cut(total, cuts[axis], other.cuts[axis])
        total += other.data.shape[axis]
    data = np.concatenate([x.data for x in args], axis=axis)
    return (Tensor(data, first.degrees, tuple(cuts)),)


def _split(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    axis = run.axis(op, x)
    need(x.degrees[axis] == 1, "split of a dimension that is divided")
    cut = x.cuts[axis]
    if cut is None:
        raise NotTypedError("split of a dimension that is no concatenation")
    parts = np.split(x.data, [cut.at], axis=axis)
    return tuple(
        Tensor(part, x.degrees, (*x.cuts[:axis], history, *x.cuts[axis + 1 :]))
        for part, history in zip(parts, (cut.left, cut.right), strict=True)
    )


def _parallel(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    k, dim = op["degree"], op["dim"]
    degrees = list(x.degrees)
    replica = op.kind in ("replicate", "reduce")
    need(run.parallel and dim < len(degrees) and replica == (dim == 0), f"{op.kind} on {dim}")
    if op.kind in ("partition", "replicate"):
        degrees[dim] *= k
    else:
        need(degrees[dim] % k == 0, f"{op.kind} by {k} of degree {degrees[dim]}")
        degrees[dim] //= k
    data = x.data
    if op.kind == "replicate":
        data = np.repeat(data, k, axis=0)
    elif op.kind == "reduce":
        data = run.numbers.total(data.reshape(degrees[0], k, *data.shape[1:]), (1,))
    return (Tensor(data, tuple(degrees), x.cuts),)


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
    "partition": _parallel, "combine": _parallel, "replicate": _parallel, "reduce": _parallel,
    **REDUCTION_OPS,
}  # fmt: skip
