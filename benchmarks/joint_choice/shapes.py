"""Types of what the ops of rules give on tensors of known sizes, on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ir import Shape, TensorType

Value = int | tuple[int, ...]
Params = tuple[tuple[str, Value], ...]
Typing = Callable[[Mapping[str, Value], Sequence[Shape]], Shape | None]


def result_type(kind: str, params: Params, args: Sequence[TensorType]) -> TensorType | None:
    """The type of an op's result; None where the op does not take these operands.

    A split is written `slice` with `axis`, `start` and `stop`; `along` and `expand` hold the shape
    that they give as `shape`. Row numbers of a gather have the shape [n, 1].
    """
    rule = _SHAPES.get(kind)
    shape = rule(dict(params), [t.shape for t in args]) if rule else None
    if shape is None:
        return None
    floats = [t for t in args if t.dtype != args[-1].dtype] if kind != "gather" else []
    return None if floats else TensorType(shape, args[0].dtype)


def _same(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    return args[0] if all(shape == args[0] for shape in args) else None


def _scale(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    return args[0] if args[1] == () else None


def _transpose(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    return args[0][::-1] if len(args[0]) == 2 else None


def _matmul(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    x, y = args
    if len(x) != 2 or len(y) != 2 or x[1] != y[0]:
        return None
    return x[0], y[1]


def _batch_matmul(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    x, y = args
    if len(x) != 3 or len(y) != 3 or x[0] != y[0] or x[2] != y[1]:
        return None
    return x[0], x[1], y[2]


def _axis(params: Mapping[str, Value], shape: Shape) -> int | None:
    axis = params["axis"]
    return axis if isinstance(axis, int) and 0 <= axis < len(shape) else None


def _concat(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    axis = _axis(params, args[0])
    if axis is None or any(len(shape) != len(args[0]) for shape in args):
        return None
    rests = {(*shape[:axis], *shape[axis + 1 :]) for shape in args}
    total = sum(shape[axis] for shape in args)
    return (*args[0][:axis], total, *args[0][axis + 1 :]) if len(rests) == 1 else None


def _slice(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    axis, start, stop = _axis(params, args[0]), params["start"], params["stop"]
    if axis is None or not isinstance(start, int) or not isinstance(stop, int):
        return None
    if not 0 <= start < stop <= args[0][axis]:
        return None
    return (*args[0][:axis], stop - start, *args[0][axis + 1 :])


def _reduced(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    axis = _axis(params, args[0])
    return None if axis is None else (*args[0][:axis], *args[0][axis + 1 :])


def _along(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    shape = params["shape"]
    if not isinstance(shape, tuple) or (axis := _axis(params, shape)) is None:
        return None
    return shape if args[0] == (shape[axis],) else None


def _expand(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    shape = params["shape"]
    if not isinstance(shape, tuple) or (axis := _axis(params, shape)) is None:
        return None
    return shape if args[0] == (*shape[:axis], *shape[axis + 1 :]) else None


def _gather(params: Mapping[str, Value], args: Sequence[Shape]) -> Shape | None:
    x, rows = args
    return (rows[0], x[1]) if len(x) == 2 and len(rows) == 2 and rows[1] == 1 else None


_SHAPES: Mapping[str, Typing] = {
    "add": _same, "sub": _same, "mul": _same, "div": _same, "neg": _same, "relu": _same,
    "exp": _same, "tanh": _same, "rsqrt": _same, "scale": _scale, "transpose": _transpose,
    "matmul": _matmul, "batch-matmul": _batch_matmul, "concat": _concat, "slice": _slice,
    "sum": _reduced, "max": _reduced, "along": _along, "expand": _expand, "gather": _gather,
}  # fmt: skip
KINDS = tuple(_SHAPES)
