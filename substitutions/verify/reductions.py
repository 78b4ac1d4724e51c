"""Types, parts and values of functions, reductions, broadcasts, batches and lookups.

exp, rsqrt, tanh and cast are unknown functions of an element, as is 1 / y in x / y. `expand(x, y)`
repeats x along the axis that y has more, of which each chunk has a replica of x; `along(g, y)` lays
the vector g along an axis of y. `sum` over a divided dimension leaves a partial sum for each chunk.
`gather` looks up rows of a table at whole numbers, modulo the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..rule import Op, Ref
from .breaks import Parts, ordered, segments
from .expr import ONE, ZERO, Expr, as_expr, call
from .reader import Indices, Meaning, ValueOf
from .solve import UndecidedError
from .types import Dim, IllFormedError, Type, Typer, Typing
from .values import Factor, Index, Value, chunk, constant, divided, product, scaled, summed, times

FUNCTIONS = ("exp", "rsqrt", "tanh", "cast")


def _own(dim: Dim) -> Dim:
    return replace(dim, origin=None)


def _function_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    return (Type(x.replica, tuple(map(_own, x.dims))),)


def _pair_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    x, y = args
    if len(x.dims) != len(y.dims):
        raise IllFormedError(f"{op.kind} of {len(x.dims)} and {len(y.dims)} dimensions")
    typing.solver.equal(x.replica, y.replica)
    for a, b in zip(x.dims, y.dims, strict=True):
        typing.solver.equal(a.size, b.size)
        typing.solver.equal(a.degree, b.degree)
    return (Type(x.replica, tuple(Dim(d.size, d.degree) for d in x.dims)),)


def _reduction_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    axis = typing.axis(op, x)
    rest = tuple(map(_own, (*x.dims[:axis], *x.dims[axis + 1 :])))
    if op.kind == "max":
        typing.solver.equal(x.dims[axis].degree, ONE)
        return (Type(x.replica, rest),)
    return (Type(x.replica * x.dims[axis].degree, rest),)


def _expand_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    x, like = args
    axis = typing.axis(op, like)
    if len(x.dims) != len(like.dims) - 1:
        raise IllFormedError(f"expand of {len(x.dims)} dimensions to {len(like.dims)}")
    typing.solver.equal(x.replica, like.replica * like.dims[axis].degree)
    kept = (*like.dims[:axis], *like.dims[axis + 1 :])
    for a, b in zip(x.dims, kept, strict=True):
        typing.solver.equal(a.size, b.size)
        typing.solver.equal(a.degree, b.degree)
    return (Type(like.replica, tuple(map(_own, like.dims))),)


def _along_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    vector, like = args
    axis = typing.axis(op, like)
    if len(vector.dims) != 1 or typing.rule.parallel:
        raise IllFormedError("along takes a vector, on one device")
    typing.solver.equal(vector.dims[0].size, like.dims[axis].size)
    return (Type(like.replica, tuple(map(_own, like.dims))),)


def _batch_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    x, y = args
    if len(x.dims) != 3 or len(y.dims) != 3:
        raise IllFormedError("batch-matmul takes three dimensions")
    typing.solver.equal(x.dims[0].size, y.dims[0].size)
    typing.solver.equal(x.dims[2].size, y.dims[1].size)
    typing.solver.equal(x.replica, y.dims[2].degree)
    typing.solver.equal(x.dims[0].degree, y.dims[0].degree)
    typing.solver.equal(x.dims[1].degree, y.replica)
    typing.solver.equal(x.dims[2].degree, y.dims[1].degree)
    return (Type(x.dims[2].degree, (_own(x.dims[0]), _own(x.dims[1]), _own(y.dims[2]))),)


def _gather_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    table, rows = args
    if len(table.dims) != 2 or len(rows.dims) != 1:
        raise IllFormedError("gather takes a matrix and a vector of rows")
    typing.solver.equal(table.replica, rows.dims[0].degree)
    typing.solver.equal(table.dims[0].degree, ONE)
    typing.solver.equal(table.dims[1].degree, rows.replica)
    return (Type(ONE, (_own(rows.dims[0]), _own(table.dims[1]))),)


REDUCTION_TYPERS: Mapping[str, Typer] = {
    **dict.fromkeys((*FUNCTIONS, "neg"), _function_type),
    "sub": _pair_type,
    "div": _pair_type,
    "sum": _reduction_type,
    "max": _reduction_type,
    "expand": _expand_type,
    "along": _along_type,
    "batch-matmul": _batch_type,
    "gather": _gather_type,
}


def _dropped(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found = [list(places) for places in m.breaks(op.inputs[0])]
    return [*found[: m.axis(op)], *found[m.axis(op) + 1 :]]


def _expand_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found = [list(places) for places in m.breaks(op.inputs[0])]
    return [*found[: m.axis(op)], [], *found[m.axis(op) :]]


def _along_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found: list[list[Expr]] = [[] for _ in m.type(ref).dims]
    found[m.axis(op)] = list(m.breaks(op.inputs[0])[0])
    return found


def _batch_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    x, y = (m.breaks(r) for r in op.inputs)
    return [[*x[0], *y[0]], list(x[1]), list(y[2])]


def _gather_breaks(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    table, rows = (m.breaks(r) for r in op.inputs)
    return [list(rows[0]), list(table[1])]


REDUCTION_BREAKS = {
    "sum": _dropped, "max": _dropped, "expand": _expand_breaks,
    "along": _along_breaks, "batch-matmul": _batch_breaks,
    "gather": _gather_breaks,
}  # fmt: skip


def function(name: str, value: Value) -> Value:
    """An unknown function of a value."""
    return times(constant(ONE), (Factor("fn", (), name, value),))


def _function(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return function(op.kind, m.at(op.inputs[0], replica, index))


def _neg(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return scaled(m.at(op.inputs[0], replica, index), as_expr(-1))


def _sub(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    x, y = (m.at(r, replica, index) for r in op.inputs)
    return x + scaled(y, as_expr(-1))


def _div(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    x, y = (m.at(r, replica, index) for r in op.inputs)
    return product(x, function("reciprocal", y))


def _inserted(index: Indices, axis: int, place: Index) -> Indices:
    return (*index[:axis], place, *index[axis:])


def _sum(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    (x,) = op.inputs
    axis = m.parts.axis(op)
    dim = m.parts.type(x).dims[axis]
    outer = divided(replica, dim.degree, m.labels.sizes)
    total: Value = ()
    for start, length in segments(ordered(m.parts.breaks(x)[axis]), dim.size):
        name, label = m.labels.make(length)
        place = Index(start + label, start, length)
        inside = m.at(x, outer, _inserted(index, axis, place))
        if dim.degree != ONE:
            part = replica - outer * dim.degree
            inside = times(inside, (Factor("eq", (chunk(place.at, dim.degree, dim.size), part)),))
        total += summed(inside, ((name, length),))
    return total


def _max(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    (x,) = op.inputs
    axis = m.parts.axis(op)
    if m.parts.breaks(x)[axis]:
        raise UndecidedError("the largest over a concatenation")
    size = m.parts.type(x).dims[axis].size
    name, label = m.labels.make(size)
    inside = m.at(x, replica, _inserted(index, axis, Index(label, ZERO, size)))
    bound = ((name, size),) if name else ()
    return times(constant(ONE), (Factor("max", (), "max", inside, bound),))


def _expand(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    axis = m.parts.axis(op)
    dim, place = m.parts.type(ref).dims[axis], index[axis].at
    copy = replica * dim.degree + chunk(place, dim.degree, dim.size)
    return m.at(op.inputs[0], copy, (*index[:axis], *index[axis + 1 :]))


def _along(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return m.at(op.inputs[0], replica, (index[m.parts.axis(op)],))


def _batch(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """As `matmul` for each of the first dimension, which is divided alike."""
    x, y = op.inputs
    b, i, j = index
    _, rows, channels = m.parts.type(x).dims
    outs = m.parts.type(y).dims[2]
    total: Value = ()
    places = ordered((*m.parts.breaks(x)[2], *m.parts.breaks(y)[1]))
    for start, length in segments(places, channels.size):
        name, label = m.labels.make(length)
        k = Index(start + label, start, length)
        left = m.at(x, chunk(j.at, outs.degree, outs.size), (b, i, k))
        right = m.at(y, chunk(i.at, rows.degree, rows.size), (b, k, j))
        both = product(left, right)
        if channels.degree != ONE:
            own = Factor("eq", (chunk(k.at, channels.degree, channels.size), replica))
            both = times(both, (own,))
        total += summed(both, ((name, length),))
    return total


def _gather(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    table, rows = op.inputs
    asked, column = m.parts.type(rows).dims[0], m.parts.type(table).dims[1]
    found = m.at(rows, chunk(index[1].at, column.degree, column.size), index[:1])
    if len(found) != 1 or found[0].bound or len(found[0].factors) != 1:
        raise UndecidedError("a lookup at computed rows")
    element = found[0].factors[0]
    if element.kind != "in" or found[0].coefficient != ONE:
        raise UndecidedError("a lookup at computed rows")
    size = m.parts.type(table).dims[0].size
    row = call("row", *element.at, size, call(element.name))
    copy = chunk(index[0].at, asked.degree, asked.size)
    return m.at(table, copy, (Index(row), index[1]))


REDUCTION_VALUES: Mapping[str, ValueOf] = {
    **dict.fromkeys(FUNCTIONS, _function),
    "neg": _neg,
    "sub": _sub,
    "div": _div,
    "sum": _sum,
    "max": _max,
    "expand": _expand,
    "along": _along,
    "batch-matmul": _batch,
    "gather": _gather,
}
