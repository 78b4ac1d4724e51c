"""Types of a rule's tensors with symbolic sizes and degrees, op by op.

A tensor is an array [replica, dims...]; each data dimension has a size and a degree that divides
it, and the replica dimension's size is its degree. Plain rules have all degrees 1.

Source: FlexFlow's substitution generator (the contract of Linear, Concat and Split).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..rule import SAME, Op, Ref, Rule, Side
from .expr import ONE, Expr, as_expr, call, quotient, symbol
from .solve import FREE, IllTypedError, Solver


class IllFormedError(Exception):
    """The rule breaks the typing of ops, whatever the sizes and degrees."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a dimension was concatenated: position of the last join, and what each part knows."""

    at: Expr
    left: Cut | None
    right: Cut | None


@dataclass(frozen=True, slots=True)
class Dim:
    """A data dimension; `origin` is (input, position) where it is an input's own."""

    size: Expr
    degree: Expr = ONE
    cut: Cut | None = None
    origin: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Type:
    """Degree of the replica dimension, and the data dimensions."""

    replica: Expr
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Conv:
    """Groups, outputs per group and inputs per group of one convolution."""

    groups: Expr
    outputs: Expr
    inputs: Expr


# Restrictions under which a rule may hold that does not hold for every convolution.
SAME_WIDTH = "all convolutions have equally many outputs per group"
UNGROUPED = "no convolution is grouped"
ASSUMPTIONS = ("", SAME_WIDTH, UNGROUPED)


@dataclass
class Typing:
    """Types of both sides while they are found.

    degrees: the symbol that stands for each degree written in the rule, or a number.
    assume: a restriction of the rule to certain convolutions, see `ASSUMPTIONS`.
    """

    rule: Rule
    solver: Solver
    degrees: Mapping[int, Expr]
    assume: str = ""
    inputs: dict[str, Type] = field(default_factory=dict[str, Type])
    convs: dict[str, Conv] = field(default_factory=dict[str, Conv])
    cuts: dict[tuple[str, int], Cut] = field(default_factory=dict[tuple[str, int], Cut])
    sides: dict[str, list[tuple[Type, ...]]] = field(
        default_factory=dict[str, list[tuple[Type, ...]]]
    )

    def __post_init__(self) -> None:
        for ref in self.rule.inputs():
            self.inputs[ref.name] = self._input(ref.name, dict(self.rule.ranks)[ref.name])

    def _input(self, name: str, rank: int) -> Type:
        parallel = self.rule.parallel
        replica = symbol(f"degree({name}, 0)") if parallel else ONE
        dims: list[Dim] = []
        for i in range(rank):
            axis = i + 1 if parallel else i
            size = symbol(f"size({name}, {axis})")
            degree = symbol(f"degree({name}, {axis})") if parallel else ONE
            if parallel:
                self.solver.divisible.append((degree, size))
            dims.append(Dim(size, degree, None, (name, i)))
        return Type(replica, tuple(dims))

    def side(self, name: str, ops: Side) -> None:
        """Types every op of a side.

        Raises:
            IllFormedError: if an op is applied to what it does not take.
            IllTypedError: if sizes or degrees cannot fit.
        """
        made: list[tuple[Type, ...]] = []
        self.sides[name] = made
        for i, op in enumerate(ops):
            args = [self.of(name, ref) for ref in op.inputs]
            made.append(_TYPES[op.kind](self, op, args, f"{name}.{i}"))

    def of(self, side: str, ref: Ref) -> Type:
        return self.inputs[ref.name] if ref.op < 0 else self.sides[side][ref.op][ref.output]

    def axis(self, op: Op, type_: Type) -> int:
        """The data dimension that `axis` names."""
        axis = op["axis"] - 1 if self.rule.parallel else op["axis"]
        if axis < 0:
            raise IllFormedError(f"{op.kind} on the replica dimension")
        if axis >= len(type_.dims):
            raise IllFormedError(f"{op.kind} on axis {op['axis']}, which does not exist")
        return axis

    def cut_of(self, dim: Dim) -> Cut:
        """Where to split a dimension; that of an input is split somewhere, both sides alike."""
        if dim.cut is not None:
            return dim.cut
        if dim.origin is None:
            raise IllFormedError("split of a dimension that is no concatenation")
        if dim.origin not in self.cuts:
            left = symbol(f"cut{dim.origin}")
            self.solver.equal(dim.size, left + symbol(f"rest{dim.origin}"))
            self.cuts[dim.origin] = Cut(left, None, None)
        return self.cuts[dim.origin]


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
    _rank(op, args[1], 0)
    return _relu(typing, op, args[:1], where)


def _transpose(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    _rank(op, x, 2)
    return (Type(x.replica, (x.dims[1], x.dims[0])),)


def _matmul(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    x, y = args
    _rank(op, x, 2)
    _rank(op, y, 2)
    typing.solver.equal(x.dims[1].size, y.dims[0].size)
    return (Type(ONE, (replace(x.dims[0], origin=None), replace(y.dims[1], origin=None))),)


def _linear(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    x, w = args
    _rank(op, x, 2)
    _rank(op, w, 2)
    (rows, channels), (outs, ins) = x.dims, w.dims
    typing.solver.equal(channels.size, ins.size)
    typing.solver.equal(x.replica, outs.degree)
    typing.solver.equal(rows.degree, w.replica)
    typing.solver.equal(channels.degree, ins.degree)
    out = Dim(outs.size, x.replica, outs.cut)
    return (Type(channels.degree, (replace(rows, origin=None), out)),)


def _conv(typing: Typing, op: Op, args: Sequence[Type], where: str) -> tuple[Type, ...]:
    x, w = args
    _rank(op, x, 4)
    _rank(op, w, 4)
    (n, c, h, width), (o, i, kh, kw) = x.dims, w.dims
    found = _grouping(typing, c.size, o.size, i.size)
    typing.convs[where] = found
    heights = _window(typing.solver, op, h.size, kh.size, "h")
    widths = _window(typing.solver, op, width.size, kw.size, "w")
    dims = (replace(n, origin=None), replace(o, origin=None), Dim(heights), Dim(widths))
    return (Type(ONE, dims),)


def _grouping(typing: Typing, channels: Expr, outs: Expr, ins: Expr) -> Conv:
    """Solves channels = groups * ins and outs = groups * per_group, as products if free."""
    solver = typing.solver
    if typing.assume == UNGROUPED:
        solver.equal(channels, ins)
        return Conv(ONE, solver.resolve(outs), solver.resolve(ins))
    groups = solver.multiple(channels, ins)
    if typing.assume == SAME_WIDTH:
        per_group = solver.multiple(outs, groups)
        solver.equal(per_group, symbol("outputs per group"))
        return Conv(solver.resolve(groups), solver.resolve(per_group), solver.resolve(ins))
    outs, groups = solver.resolve(outs), solver.resolve(groups)
    solver.divides(groups, outs)
    found = quotient(outs, groups)
    return Conv(groups, call("div", outs, groups) if found is None else found, solver.resolve(ins))


def _window(solver: Solver, op: Op, size: Expr, kernel: Expr, axis: str) -> Expr:
    stride = as_expr(op[f"stride_{axis}"])
    size, kernel = solver.resolve(size), solver.resolve(kernel)
    if op["padding"] == SAME:
        return call("ceil", size, stride)
    slack = size - kernel
    if slack.sign() == -1:
        raise IllTypedError(f"a window of {kernel} in {size}")
    return call("div", slack, stride) + 1


def _pool(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    _rank(op, x, 4)
    n, c, h, w = x.dims
    heights = _window(typing.solver, op, h.size, as_expr(op["kernel_h"]), "h")
    widths = _window(typing.solver, op, w.size, as_expr(op["kernel_w"]), "w")
    kept = [replace(d, origin=None) for d in (n, c)]
    return (Type(ONE, (kept[0], kept[1], Dim(heights), Dim(widths))),)


def _enlarge(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (w,) = args
    _rank(op, w, 4)
    sizes = [as_expr(op["kernel_h"]), as_expr(op["kernel_w"])]
    for dim, size in zip(w.dims[2:], sizes, strict=True):
        if (typing.solver.resolve(dim.size) - size).sign() == 1:
            raise IllTypedError(f"a kernel of {dim.size} is enlarged to {size}")
    kept = [replace(d, origin=None) for d in w.dims[:2]]
    return (Type(ONE, (kept[0], kept[1], Dim(sizes[0]), Dim(sizes[1]))),)


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
    k, dim = typing.degrees[op["degree"]], op["dim"]
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


_Typer = Callable[[Typing, Op, Sequence[Type], str], tuple[Type, ...]]
_TYPES: Mapping[str, _Typer] = {
    "add": _pointwise, "mul": _pointwise, "relu": _relu, "scale": _scale,
    "transpose": _transpose, "matmul": _matmul, "linear": _linear, "conv": _conv,
    "avgpool": _pool, "maxpool": _pool, "enlarge": _enlarge, "concat": _concat, "split": _split,
    "partition": _parallel, "combine": _parallel, "replicate": _parallel, "reduce": _parallel,
    "ones": _constant, "identity-matrix": _constant, "identity-kernel": _constant,
    "mean-kernel": _constant,
}  # fmt: skip


def resolved(solver: Solver, type_: Type) -> Type:
    """The type with all that is known now written in."""
    dims = tuple(
        Dim(solver.resolve(d.size), solver.resolve(d.degree), None, None) for d in type_.dims
    )
    return Type(solver.resolve(type_.replica), dims)
