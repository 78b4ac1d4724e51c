"""Ops that put elements in other places: transpose, concat and split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from ir import Literal

from ..graph import Op, Ref
from ..numeric.arrays import NotTypedError, need
from ..numeric.devices import Cut as Joint
from ..numeric.devices import Run, Tensor
from ..program.matcher import Env, Found, Matcher
from ..program.net import Item, Source
from ..program.nodes import joined, part, reshaped
from ..program.views import Cut, Partial, renumbered
from ..program.writer import Built, NoFitError, Writer, in_order
from ..symbolic.expr import ONE, ZERO, Expr
from ..symbolic.joints import Parts, pointwise_joints
from ..symbolic.meaning import Indices, Meaning
from ..symbolic.solve import UndecidedError
from ..symbolic.types import Cut as SymbolicCut
from ..symbolic.types import Dim, IllFormedError, Type, Typing, computed, fit_rank, same_cut
from ..symbolic.values import Index, Value
from ..term import Term, axis_of
from .record import Form, RuleOp

# --- transpose ---------------------------------------------------------------------------------


def _transpose_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    fit_rank(op, x, 2)
    return (Type(x.replica, (x.dims[1], x.dims[0])),)


def _transpose_joints(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    return [list(places) for places in reversed(m.joints(op.inputs[0]))]


def _transpose(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return m.at(op.inputs[0], replica, (index[1], index[0]))


def _compute_transpose(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    need(x.rank == 2, "transpose of no matrix")
    order = (0, 2, 1)
    degrees, cuts = tuple(x.degrees[i] for i in order), tuple(x.cuts[i] for i in order)
    return (Tensor(x.data.transpose(0, 2, 1, 4, 3), degrees, cuts),)


def _read_transpose(at: Matcher, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = at.maker(source, ("transpose",))
    if item is None:
        return
    order = cast("tuple[int, ...]", item.node.attr("permutation"))
    into, back = dict(enumerate(order)), {d: k for k, d in enumerate(order)}
    inner = renumbered((known[1], known[0]), into)
    for groups, more in at.match(term.args[0], item.inputs[0], inner, env):
        found = renumbered((groups[1], groups[0]), back)
        if found is not None:
            yield found, more


def _write_transpose(at: Writer, term: Term) -> Built:
    x = at.write(term.args[0])
    return replace(x, groups=x.groups[::-1], cuts=x.cuts[::-1])


# --- concat ------------------------------------------------------------------------------------


def _concat_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
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
                if not same_cut(typing, history[i].cut, b.cut):
                    history[i] = replace(history[i], cut=None)
        cut = SymbolicCut(total, cut, other.dims[axis].cut)
        total = total + other.dims[axis].size
    history[axis] = Dim(total, ONE, cut)
    return (computed(first.replica, history),)


def _concat_joints(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found = pointwise_joints(m, op, ref)
    axis, start = m.axis(op), ZERO
    found[axis] = []
    for r in op.inputs:
        found[axis] += [start + place for place in m.joints(r)[axis]]
        start = start + m.type(r).dims[axis].size
        found[axis].append(start)
    found[axis].pop()
    return found


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


def _compute_concat(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
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
        cuts[axis] = Joint(total, cuts[axis], other.cuts[axis])
        total += other.local[axis - 1]
    data = np.concatenate([x.data for x in args], axis=first.rank + axis)
    return (Tensor(data, first.degrees, tuple(cuts)),)


def _read_concat(at: Matcher, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = at.maker(source, ("concatenate",))
    if item is None or len(item.inputs) != len(term.args):
        return
    axis, dim = axis_of(term), cast("int", item.node.attr("dimension"))
    group = known[axis]
    if group is not None and group[:1] != (dim,):
        return
    whole = (*known[:axis], group or (dim,), *known[axis + 1 :])
    for groups, more in at.match(term.args[0], item.inputs[0], whole, env):
        yield from at.match(term.args[1], item.inputs[1], groups, more)


def _write_concat(at: Writer, term: Term) -> Built:
    (a, b), axis = map(at.write, term.args), axis_of(term)
    if at.type_of(a).dtype != at.type_of(b).dtype:
        raise NoFitError
    for k in range(len(a.groups)):
        if k != axis:
            at.equal_sizes(a, k, b, k)
    cut = _cut(at.sizes(a, axis), at.sizes(b, axis), at.may_stack)
    laid: list[Source] = []
    for x, single in zip((a, b), cut.single, strict=True):
        laid.append(at.laid(x, [int(single and k == axis) for k in range(len(x.groups))]))
    counts = [len(g) + int(cut.single[0] and k == axis) for k, g in enumerate(a.groups)]
    cuts = tuple((cut, *c) if k == axis else c for k, c in enumerate(a.cuts))
    return Built(joined(at.net, laid, sum(counts[:axis])), in_order(counts), cuts)


def _cut(left: Sequence[int], right: Sequence[int], may_stack: bool) -> Cut:
    """How parts of an axis with these dimensions are joined.

    Raises:
        NoFitError: if they cannot be.
    """
    if may_stack and left and left == right:
        return Cut((1, 1), (True, True))
    if may_stack and len(right) > 0 and left[1:] == right and len(left) > 1:
        return Cut((left[0], 1), (False, True))
    if may_stack and len(left) > 0 and right[1:] == left and len(right) > 1:
        return Cut((1, right[0]), (True, False))
    if left and right and left[1:] == right[1:]:
        return Cut((left[0], right[0]), (False, False))
    raise NoFitError


# --- split -------------------------------------------------------------------------------------


def _split_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    axis = typing.axis(op, x)
    typing.solver.equal(x.dims[axis].degree, ONE)
    cut = typing.cut_of(x.dims[axis])
    parts = (Dim(cut.at, ONE, cut.left), Dim(x.dims[axis].size - cut.at, ONE, cut.right))
    return tuple(computed(x.replica, (*x.dims[:axis], part, *x.dims[axis + 1 :])) for part in parts)


def _split_joints(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found = [list(places) for places in m.joints(op.inputs[0])]
    axis = m.axis(op)
    start, size = m.part(op, ref.output)
    kept: list[Expr] = []
    for place in found[axis]:
        low, high = (place - start).sign(), (start + size - place).sign()
        if low is None or high is None:
            raise UndecidedError(f"whether {place} is in a part")
        if low == 1 and high == 1:
            kept.append(place - start)
    found[axis] = kept
    return found


def _split(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    axis = m.parts.axis(op)
    start, _ = m.parts.part(op, ref.output)
    i = index[axis]
    moved = Index(i.at + start, i.start + start, i.length)
    return m.at(op.inputs[0], replica, (*index[:axis], moved, *index[axis + 1 :]))


def _compute_split(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    axis = run.axis(op, x)
    need(x.degrees[axis] == 1, "split of a dimension that is divided")
    cut = x.cuts[axis]
    if cut is None:
        raise NotTypedError("split of a dimension that is no concatenation")
    need(0 < cut.at < x.local[axis - 1], f"split of {x.local[axis - 1]} at {cut.at}")
    parts = np.split(x.data, [cut.at], axis=x.rank + axis)
    return tuple(
        Tensor(data, x.degrees, (*x.cuts[:axis], history, *x.cuts[axis + 1 :]))
        for data, history in zip(parts, (cut.left, cut.right), strict=True)
    )


def _read_split(at: Matcher, term: Term, source: Source, known: Partial, env: Env) -> Found:
    """A part of a concatenation, cut where its parts meet."""
    item = at.maker(source, ("split", "slice"))
    whole = None if item is None else at.net.maker(item.inputs[0])
    if item is None or whole is None or term.args[0].kind != "concat":
        return
    if whole.node.op != "concatenate" or len(whole.inputs) != 2:
        return
    dim = cast("int", whole.node.attr("dimension"))
    lengths = [at.net.type_of(s).shape[dim] for s in whole.inputs]
    if _is_part(at, item, source, dim, lengths, term.part):
        yield from at.match(term.args[0], item.inputs[0], known, env)


def _is_part(
    at: Matcher, item: Item, source: Source, dim: int, lengths: list[int], number: int
) -> bool:
    if item.node.op == "split":
        assert not isinstance(source, Literal)
        cut = item.node.attr("axis"), item.node.attr("sizes")
        return cut == (dim, tuple(lengths)) and source[1] == number
    before, after = at.net.type_of(item.inputs[0]).shape, at.net.type_of(source).shape
    start = cast("tuple[int, ...]", item.node.attr("start_indices"))
    others = [d for d in range(len(before)) if d != dim and before[d] != after[d]]
    plain = item.node.attr("strides") is None and not others
    return plain and after[dim] == lengths[number] and start[dim] == number * lengths[0]


def _write_split(at: Writer, term: Term) -> Built:
    x, axis = at.write(term.args[0]), axis_of(term)
    if not x.cuts[axis]:
        raise NoFitError
    cut, number = x.cuts[axis][0], term.part
    dim = x.groups[axis][0]
    start = cut.lengths[0] * number
    source = part(at.net, x.source, dim, start, start + cut.lengths[number])
    groups = x.groups
    if cut.single[number]:
        shape = [n for d, n in enumerate(at.net.type_of(source).shape) if d != dim]
        source = reshaped(at.net, source, shape)
        groups = tuple(
            tuple(d - (d > dim) for d in (g[1:] if k == axis else g)) for k, g in enumerate(groups)
        )
    cuts = tuple(c[1:] if k == axis else c for k, c in enumerate(x.cuts))
    return Built(source, groups, cuts)


# --- records -----------------------------------------------------------------------------------

SHAPES = (
    RuleOp(
        name="transpose", operands=(1, 1), dims=2, moves=True, replicas_apart=True,
        type=_transpose_type, joints=_transpose_joints, value=_transpose,
        compute=_compute_transpose, form=Form(("transpose",), _read_transpose, _write_transpose),
    ),
    RuleOp(
        name="concat", operands=(2, 8), params=("axis",), moves=True, replicas_apart=True,
        type=_concat_type, joints=_concat_joints, value=_concat, compute=_compute_concat,
        form=Form(("concatenate",), _read_concat, _write_concat),
    ),
    RuleOp(
        name="split", operands=(1, 1), results=2, params=("axis",), moves=True,
        replicas_apart=True, type=_split_type, joints=_split_joints, value=_split,
        compute=_compute_split, form=Form(("split", "slice"), _read_split, _write_split),
    ),
)  # fmt: skip
