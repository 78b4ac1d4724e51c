"""The types of an op's results, op by op.

Source: FlexFlow's substitution generator (the contract of Linear, Concat and Split).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..rule import SAME, Op, Side
from .expr import ONE, Expr, as_expr, call, quotient, symbol
from .reductions import REDUCTION_TYPERS
from .solve import FREE, Solver
from .types import (
    SAME_WIDTH,
    UNGROUPED,
    Conv,
    Cut,
    Dim,
    IllFormedError,
    Type,
    Typer,
    Typing,
)


def type_side(typing: Typing, name: str, ops: Side) -> None:
    """Types every op of a side.

    Raises:
        IllFormedError: if an op is applied to what it does not take.
        IllTypedError: if sizes or degrees cannot fit.
        UndecidedError: if the equations are beyond the solver.
    """
    made: list[tuple[Type, ...]] = []
    typing.sides[name] = made
    for i, op in enumerate(ops):
        args = [typing.of(name, ref) for ref in op.inputs]
        made.append(_TYPERS[op.kind](typing, op, args, f"{name}.{i}"))


def _rank(op: Op, type_: Type, rank: int) -> None:
    if len(type_.dims) != rank:
        raise IllFormedError(f"{op.kind} of {len(type_.dims)} dimensions, takes {rank}")


def _pointwise(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    x, y = args
    if len(x.dims) != len(y.dims):
        raise IllFormedError(f"{op.kind} of {len(x.dims)} and {len(y.dims)} dimensions")
    typing.solver.equal(x.replica, y.replica)
    dims: list[Dim] = []
    for a, b in zip(x.dims, y.dims, strict=True):
        typing.solver.equal(a.size, b.size)
        typing.solver.equal(a.degree, b.degree)
        dims.append(replace(a, cut=a.cut if _same_cut(typing, a.cut, b.cut) else None, origin=None))
    return (Type(x.replica, tuple(dims)),)


def _same_cut(typing: Typing, a: Cut | None, b: Cut | None) -> bool:
    if a is None or b is None:
        return a is b
    at = typing.solver.resolve(a.at) == typing.solver.resolve(b.at)
    return at and _same_cut(typing, a.left, b.left) and _same_cut(typing, a.right, b.right)


def _relu(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    return (Type(x.replica, tuple(replace(d, origin=None) for d in x.dims)),)


def _scale(typing: Typing, op: Op, args: Sequence[Type], where: str) -> tuple[Type, ...]:
    """The factor is on as many devices as the tensor."""
    x, factor = args
    _rank(op, factor, 0)
    devices = x.replica
    for dim in x.dims:
        devices = devices * dim.degree
    typing.solver.equal(factor.replica, devices)
    return _relu(typing, op, args[:1], where)


def _transpose(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    _rank(op, x, 2)
    return (Type(x.replica, (x.dims[1], x.dims[0])),)


def _matmul(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    """A product of parts of rows, columns and channels; one of some channels is a partial sum."""
    x, y = args
    _rank(op, x, 2)
    _rank(op, y, 2)
    (rows, channels), (ins, outs) = x.dims, y.dims
    typing.solver.equal(channels.size, ins.size)
    return (_contraction(typing, x.replica, (rows, channels), y.replica, (outs, ins)),)


def _contraction(
    typing: Typing, copies: Expr, read: tuple[Dim, Dim], others: Expr, weight: tuple[Dim, Dim]
) -> Type:
    """Degrees of rows and outputs contracted over channels, all of them on the same devices.

    Args:
        typing: the equations.
        copies: replicas of the operand of rows and channels, one for each chunk of outputs.
        read: its rows and channels.
        others: replicas of the operand of outputs and channels, one for each chunk of rows.
        weight: its outputs and channels.
    """
    (rows, channels), (outs, ins) = read, weight
    typing.solver.equal(copies, outs.degree)
    typing.solver.equal(rows.degree, others)
    typing.solver.equal(channels.degree, ins.degree)
    kept = replace(rows, origin=None), Dim(outs.size, copies, outs.cut)
    return Type(channels.degree, kept)


def _undivided(typing: Typing, dims: Sequence[Dim]) -> None:
    for dim in dims:
        typing.solver.equal(dim.degree, ONE)


def _linear(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    x, w = args
    _rank(op, x, 2)
    _rank(op, w, 2)
    (rows, channels), (outs, ins) = x.dims, w.dims
    typing.solver.equal(channels.size, ins.size)
    return (_contraction(typing, x.replica, (rows, channels), w.replica, (outs, ins)),)


def _conv(typing: Typing, op: Op, args: Sequence[Type], where: str) -> tuple[Type, ...]:
    x, w = args
    _rank(op, x, 4)
    _rank(op, w, 4)
    (n, c, h, width), (o, i, kh, kw) = x.dims, w.dims
    made = _contraction(typing, x.replica, (n, c), w.replica, (o, i))
    _undivided(typing, (h, width, kh, kw))
    found = _grouping(typing, c.size, o, i.size)
    typing.convs[where] = found
    heights = _window(typing.solver, op, h.size, kh.size, "h")
    widths = _window(typing.solver, op, width.size, kw.size, "w")
    return (Type(made.replica, (*made.dims, Dim(heights), Dim(widths))),)


def _grouping(typing: Typing, channels: Expr, outputs: Dim, ins: Expr) -> Conv:
    """Solves channels = groups * ins and outs = groups * per_group, as products if free.

    Every device has all the groups, of its own channels and outputs.
    """
    solver, outs = typing.solver, outputs.size
    if UNGROUPED in typing.assume:
        solver.equal(channels, ins)
        return Conv(ONE, solver.resolve(outs), solver.resolve(ins))
    groups = solver.multiple(channels, ins)
    if SAME_WIDTH in typing.assume:
        per_group = solver.multiple(outs, groups)
        solver.equal(per_group, symbol("outputs per group"))
        return Conv(solver.resolve(groups), solver.resolve(per_group), solver.resolve(ins))
    outs, groups = solver.resolve(outs), solver.resolve(groups)
    solver.divides(solver.resolve(groups * outputs.degree), outs)
    found = quotient(outs, groups)
    return Conv(groups, call("div", outs, groups) if found is None else found, solver.resolve(ins))


def _window(solver: Solver, op: Op, size: Expr, kernel: Expr, axis: str) -> Expr:
    stride = as_expr(op[f"stride_{axis}"])
    size, kernel = solver.resolve(size), solver.resolve(kernel)
    if op["padding"] == SAME:
        return call("ceil", size, stride)
    solver.at_least(size, kernel)
    return call("div", size - kernel, stride) + 1


def _pool(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    _rank(op, x, 4)
    n, c, h, w = x.dims
    _undivided(typing, (h, w))
    heights = _window(typing.solver, op, h.size, as_expr(op["kernel_h"]), "h")
    widths = _window(typing.solver, op, w.size, as_expr(op["kernel_w"]), "w")
    kept = [replace(d, origin=None) for d in (n, c)]
    return (Type(x.replica, (kept[0], kept[1], Dim(heights), Dim(widths))),)


def _enlarge(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (w,) = args
    _rank(op, w, 4)
    _undivided(typing, w.dims[2:])
    sizes = [as_expr(op["kernel_h"]), as_expr(op["kernel_w"])]
    for dim, size in zip(w.dims[2:], sizes, strict=True):
        typing.solver.at_least(size, dim.size)
    kept = [replace(d, origin=None) for d in w.dims[:2]]
    return (Type(w.replica, (kept[0], kept[1], Dim(sizes[0]), Dim(sizes[1]))),)


def _concat(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    first = args[0]
    axis = typing.axis(op, first)
    for other in args[1:]:
        if len(other.dims) != len(first.dims):
            raise IllFormedError("concat of tensors with different numbers of dimensions")
    total, cut, history = first.dims[axis].size, first.dims[axis].cut, list(first.dims)
    typing.solver.equal(first.dims[axis].degree, ONE)
    for other in args[1:]:
        typing.solver.equal(first.replica, other.replica)
        for i, (a, b) in enumerate(zip(first.dims, other.dims, strict=True)):
            typing.solver.equal(a.degree, b.degree)
            if i != axis:
                typing.solver.equal(a.size, b.size)
                if not _same_cut(typing, history[i].cut, b.cut):
                    history[i] = replace(history[i], cut=None)
        cut = Cut(total, cut, other.dims[axis].cut)
        total = total + other.dims[axis].size
    history[axis] = Dim(total, ONE, cut)
    return (Type(first.replica, tuple(replace(d, origin=None) for d in history)),)


def _split(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    axis = typing.axis(op, x)
    typing.solver.equal(x.dims[axis].degree, ONE)
    cut = typing.cut_of(x.dims[axis])
    parts = (Dim(cut.at, ONE, cut.left), Dim(x.dims[axis].size - cut.at, ONE, cut.right))
    kept = tuple(replace(d, origin=None) for d in x.dims)
    return tuple(Type(x.replica, (*kept[:axis], part, *kept[axis + 1 :])) for part in parts)


def _parallel(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    if not typing.rule.parallel:
        raise IllFormedError(f"{op.kind} of a tensor without degrees")
    k, dim = typing.degree(op), op["dim"]
    if op.kind in ("replicate", "reduce"):
        if dim:
            raise IllFormedError(
                f"{op.kind} on data dimension {dim}; it changes the replica dimension"
            )
        if op.kind == "replicate":
            return (Type(x.replica * k, tuple(replace(d, origin=None) for d in x.dims)),)
        replica = typing.solver.multiple(x.replica, k)
        return (Type(replica, tuple(replace(d, origin=None) for d in x.dims)),)
    if not 1 <= dim <= len(x.dims):
        what = "the replica dimension" if dim == 0 else f"dimension {dim}, which does not exist"
        raise IllFormedError(f"{op.kind} on {what}; it changes a data dimension")
    old = x.dims[dim - 1]
    if op.kind == "partition":
        typing.solver.divides(old.degree * k, old.size)
        degree = old.degree * k
    else:
        degree = typing.solver.multiple(old.degree, k)
    dims = list(x.dims)
    dims[dim - 1] = replace(old, degree=degree)
    return (Type(x.replica, tuple(replace(d, origin=None) for d in dims)),)


def _constant(typing: Typing, op: Op, args: Sequence[Type], where: str) -> tuple[Type, ...]:
    def free(what: str) -> Expr:
        return symbol(f"{FREE}{where}.{what}")

    if op.kind == "identity-matrix":
        return (Type(ONE, (Dim(free("n")), Dim(free("n")))),)
    if op.kind == "ones":
        rank = max(rank for _, rank in typing.rule.ranks)
        return (Type(ONE, tuple(Dim(free(str(i))) for i in range(rank))),)
    groups, ins = free("groups"), free("ins")
    kernel = (Dim(as_expr(op["kernel_h"])), Dim(as_expr(op["kernel_w"])))
    return (Type(ONE, (Dim(groups * ins), Dim(ins), *kernel)),)


_TYPERS: Mapping[str, Typer] = {
    "add": _pointwise, "mul": _pointwise, "relu": _relu, "scale": _scale,
    "transpose": _transpose, "matmul": _matmul, "linear": _linear, "conv": _conv,
    "avgpool": _pool, "maxpool": _pool, "enlarge": _enlarge, "concat": _concat, "split": _split,
    "partition": _parallel, "combine": _parallel, "replicate": _parallel, "reduce": _parallel,
    "ones": _constant, "identity-matrix": _constant, "identity-kernel": _constant,
    "mean-kernel": _constant, **REDUCTION_TYPERS,
}  # fmt: skip
