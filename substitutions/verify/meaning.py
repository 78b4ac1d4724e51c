"""The value of every op at symbolic positions: an op's meaning, written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..rule import RELU, SAME, Op, Ref
from .breaks import ordered, segments
from .expr import ONE, ZERO, Expr, as_expr, call
from .normal import share
from .reader import Indices, Meaning, ValueOf
from .reductions import REDUCTION_VALUES
from .solve import UndecidedError
from .types import Dim
from .values import (
    Factor,
    Index,
    Value,
    chunk,
    constant,
    divided,
    product,
    pulled,
    scaled,
    summed,
    times,
)


def _add(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    a, b = (m.at(r, replica, index) for r in op.inputs)
    return a + b


def _mul(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    a, b = (m.at(r, replica, index) for r in op.inputs)
    return product(a, b)


def _scale(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """Each device has a factor; devices are counted replica by replica, then chunk by chunk."""
    x, factor = op.inputs
    device = replica
    for i, dim in zip(index, m.parts.type(x).dims, strict=True):
        device = device * dim.degree + _chunk_of(i, dim)
    return product(m.at(x, replica, index), m.at(factor, device, ()))


def rectified(value: Value) -> Value:
    """The relu of a value, of which only relu(relu(x)) = relu(x) is used."""
    return times(constant(ONE), (Factor("fn", (), "relu", value),))


def _relu(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return rectified(m.at(op.inputs[0], replica, index))


def _activated(op: Op, value: Value) -> Value:
    return rectified(value) if op.get("activation", 0) == RELU else value


def _transpose(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return m.at(op.inputs[0], replica, (index[1], index[0]))


def _contracted(m: Meaning, places: Sequence[Expr], size: Expr) -> list[tuple[str, Expr, Index]]:
    """A summed position for each part of a contracted dimension: its label, size, and index."""
    found: list[tuple[str, Expr, Index]] = []
    for start, length in segments(ordered(places), size):
        name, label = m.labels.make(length)
        found.append((name, length, Index(start + label, start, length)))
    return found


def _matmul(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """out[r, n, o] = sum of x[chunk(o), n, c] * y[chunk(n), c, o] over the c in chunk r."""
    x, y = op.inputs
    rows, channels = m.parts.type(x).dims
    outs = m.parts.type(y).dims[1]
    n, o = index
    total: Value = ()
    places = (*m.parts.breaks(x)[1], *m.parts.breaks(y)[0])
    for name, length, c in _contracted(m, places, channels.size):
        left = m.at(x, _chunk_of(o, outs), (n, c))
        right = m.at(y, _chunk_of(n, rows), (c, o))
        own = _in_chunk(c, channels, replica)
        total += summed(times(product(left, right), own), ((name, length),))
    return _activated(op, total)


def _chunk_of(i: Index, dim: Dim) -> Expr:
    """Which chunk of a dimension a position is in."""
    return chunk(i.at, dim.degree, dim.size)


def _in_chunk(i: Index, dim: Dim, number: Expr) -> tuple[Factor, ...]:
    """1 where a position is in the chunk of that number; nothing where there is one."""
    return () if dim.degree == ONE else (Factor("eq", (_chunk_of(i, dim), number)),)


def _linear(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """out[r, n, o] = sum of x[chunk(o), n, c] * w[chunk(n), o, c] over the c in chunk r."""
    x, w = op.inputs
    rows, channels = m.parts.type(x).dims
    outs = m.parts.type(w).dims[0]
    n, o = index
    total: Value = ()
    places = (*m.parts.breaks(x)[1], *m.parts.breaks(w)[1])
    for name, length, c in _contracted(m, places, channels.size):
        left = m.at(x, _chunk_of(o, outs), (n, c))
        right = m.at(w, _chunk_of(n, rows), (o, c))
        own = _in_chunk(c, channels, replica)
        total += summed(times(product(left, right), own), ((name, length),))
    return _activated(op, total)


def _pad(op: Op, kernel: Expr, size: Expr, axis: str) -> Expr:
    stride = as_expr(op[f"stride_{axis}"])
    return call("pad", kernel, stride, size) if op["padding"] == SAME else ZERO


def _conv(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """Taps are counted from the element at the window's origin, kernels are 0 outside.

    Replicas are as in `linear`: of the image a chunk of outputs, of the kernel one of images, of
    the result one of channels.
    """
    x, w = op.inputs
    n, o, h, width = index
    grouping = m.parts.typing.convs[f"{m.parts.name}.{ref.op}"]
    resolve = m.parts.typing.solver.resolve
    groups, outs, ins = (resolve(e) for e in (grouping.groups, grouping.outputs, grouping.inputs))
    x_dims, w_dims = m.parts.type(x).dims, m.parts.type(w).dims
    taps = [m.labels.make(None) for _ in range(2)]
    sources: list[Index] = []
    kernel: list[Index] = []
    windows: list[Factor] = []
    for i, (place, axis) in enumerate(((h, "h"), (width, "w"))):
        size, taken, tap = x_dims[2 + i].size, w_dims[2 + i].size, taps[i][1]
        source = place.at * op[f"stride_{axis}"] + tap
        own = tap + _pad(op, taken, size, axis)
        sources.append(Index(source))
        kernel.append(Index(own))
        windows += [Factor("box", (source, size)), Factor("box", (own, taken))]
    places = [*m.parts.breaks(w)[1]]
    if groups == ONE:
        places += m.parts.breaks(x)[1]
    elif places:
        raise UndecidedError("a grouped convolution whose channels are concatenated")
    total: Value = ()
    for name, length, c in _contracted(m, places, ins):
        channel = c
        if x_dims[1].degree != ONE or w_dims[0].degree != ONE:
            channel = c if groups == ONE else _local_channel(o, c, x_dims[1], w_dims)
        elif groups != ONE:
            channel = _channel(m, o, c, outs, ins)
        left = m.at(x, _chunk_of(o, w_dims[0]), (n, channel, *sources))
        right = m.at(w, _chunk_of(n, x_dims[0]), (o, c, *kernel))
        bound = ((name, length), *((label, None) for label, _ in taps))
        inside = (*windows, *_in_chunk(c, w_dims[1], replica))
        total += summed(times(product(left, right), inside), bound)
    return _activated(op, total)


def _channel(m: Meaning, o: Index, c: Index, outs: Expr, ins: Expr) -> Index:
    """The input channel that output o reads for c: floor(o / outs) * ins + c."""
    at = divided(o.at, outs, m.labels.sizes) * ins + c.at
    first, rest = pulled(o.start, outs)
    if o.length is None or rest.terms:
        return Index(at)
    count, rest = pulled(o.length, outs)
    return Index(at) if rest.terms else Index(at, first * ins, count * ins)


def _local_channel(o: Index, c: Index, channels: Dim, kernel: Sequence[Dim]) -> Index:
    """The same where channels are divided: each device has all groups, of its own channels.

    Which one that is depends on no more than these positions, sizes and degrees.
    """
    known = [e for d in (channels, *kernel[:2]) for e in (d.size, d.degree)]
    return Index(call("channel", o.at, c.at, *known))


def _pooled(
    m: Meaning, op: Op, replica: Expr, index: Indices
) -> tuple[Value, tuple[Factor, ...], tuple[str, str]]:
    """What a window holds, the window, and its two labels."""
    (x,) = op.inputs
    names: list[str] = []
    places: list[Index] = []
    window: list[Factor] = []
    for i, axis in enumerate(("h", "w")):
        name, tap = m.labels.make(None)
        size, kernel = m.parts.type(x).dims[2 + i].size, as_expr(op[f"kernel_{axis}"])
        source = index[2 + i].at * op[f"stride_{axis}"] + tap
        own = tap + _pad(op, kernel, size, axis)
        names.append(name)
        places.append(Index(source))
        window += [Factor("box", (source, size)), Factor("box", (own, kernel))]
    inside = m.at(x, replica, (index[0], index[1], *places))
    return inside, tuple(window), (names[0], names[1])


def _avgpool(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """The mean over the whole window; what lies outside the image counts as 0."""
    inside, window, names = _pooled(m, op, replica, index)
    total = summed(times(inside, window), tuple((name, None) for name in names))
    return scaled(total, share(op["kernel_h"], op["kernel_w"]))


def _maxpool(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    inside, window, names = _pooled(m, op, replica, index)
    bound = tuple((name, None) for name in names)
    return times(constant(ONE), (Factor("max", (), "max", inside, bound, window),))


def _enlarge(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """The kernel in the middle of a larger one of zeros; the odd zero comes last."""
    (w,) = op.inputs
    places: list[Index] = []
    window: list[Factor] = []
    for i, axis in enumerate(("h", "w")):
        old = m.parts.type(w).dims[2 + i].size
        place = index[2 + i].at - call("half", as_expr(op[f"kernel_{axis}"]) - old)
        places.append(Index(place))
        window.append(Factor("box", (place, old)))
    return times(m.at(w, replica, (index[0], index[1], *places)), tuple(window))


def _concat(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    axis = m.parts.axis(op)
    i = index[axis]
    if i.length is None:
        raise UndecidedError("a position in a concatenation")
    start = ZERO
    for r in op.inputs:
        size = m.parts.type(r).dims[axis].size
        inside = (start + size - i.start - i.length).sign()
        after = (i.start - start - size).sign()
        if inside in (0, 1) and (i.start - start).sign() in (0, 1):
            moved = Index(i.at - start, i.start - start, i.length)
            return m.at(r, replica, (*index[:axis], moved, *index[axis + 1 :]))
        if after not in (0, 1):
            raise UndecidedError(f"which part of a concatenation {i.start} is in")
        start = start + size
    raise UndecidedError(f"{i.start} lies outside a concatenation")


def _split(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    axis = m.parts.axis(op)
    start, _ = m.parts.part(op, ref.output)
    i = index[axis]
    moved = Index(i.at + start, i.start + start, i.length)
    return m.at(op.inputs[0], replica, (*index[:axis], moved, *index[axis + 1 :]))


def _same(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """Partition and combine change where elements are, not what they are."""
    return m.at(op.inputs[0], replica, index)


def _replicate(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    k = m.parts.typing.degree(op)
    return m.at(op.inputs[0], divided(replica, k, m.labels.sizes), index)


def _reduce(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    k = m.parts.typing.degree(op)
    name, label = m.labels.make(k)
    return summed(m.at(op.inputs[0], replica * k + label, index), ((name, k),))


def _ones(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return constant(ONE)


def _identity_matrix(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return times(constant(ONE), (Factor("eq", (index[0].at, index[1].at)),))


def _kernel(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """1 in the middle, or the mean, on the channel of the same number."""
    o, c, h, w = index
    ins = m.parts.type(ref).dims[1].size
    own = Factor("eq", (c.at, ZERO if ins == ONE else call("mod", o.at, ins)))
    kernel = (op["kernel_h"], op["kernel_w"])
    if op.kind == "mean-kernel":
        return scaled(times(constant(ONE), (own,)), share(*kernel))
    middle = [Factor("eq", (i.at, as_expr(k // 2))) for i, k in zip((h, w), kernel, strict=True)]
    return times(constant(ONE), (own, *middle))


VALUES: Mapping[str, ValueOf] = {
    "add": _add, "mul": _mul, "scale": _scale, "relu": _relu, "transpose": _transpose,
    "matmul": _matmul, "linear": _linear, "conv": _conv, "avgpool": _avgpool,
    "maxpool": _maxpool, "enlarge": _enlarge, "concat": _concat, "split": _split,
    "partition": _same, "combine": _same, "replicate": _replicate, "reduce": _reduce,
    "ones": _ones, "identity-matrix": _identity_matrix, "identity-kernel": _kernel,
    "mean-kernel": _kernel, **REDUCTION_VALUES,
}  # fmt: skip
