"""Sums and maxima along an axis, and ops that repeat a smaller array along one.

`expand(x, y)` repeats x along the axis that y has more, of which each chunk has a replica of x;
`along(g, y)` repeats the vector g, which lies along an axis of y. `sum` over a divided dimension
leaves a partial sum for each chunk, as minor replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar, cast

import numpy as np

from ..graph import Op, Ref
from ..numeric.arrays import need
from ..numeric.devices import Cut, Run, Tensor
from ..program.matcher import Env, Found, Matcher
from ..program.net import Source
from ..program.nodes import like, reshaped, spread
from ..program.views import Group, Partial, filled, renumbered, unify
from ..program.writer import Built, Writer
from ..symbolic.expr import ONE, ZERO, Expr
from ..symbolic.joints import Parts
from ..symbolic.meaning import Indices, Meaning, chunk_of, in_chunk, summed_over
from ..symbolic.solve import UndecidedError
from ..symbolic.types import IllFormedError, Type, Typing, computed, fit_shapes
from ..symbolic.values import Factor, Index, Value, constant, divided, summed, times
from ..term import Term, axis_of
from .record import Form, RuleOp

T = TypeVar("T")


def _without(items: Sequence[T], axis: int) -> tuple[T, ...]:
    return (*items[:axis], *items[axis + 1 :])


# --- sum and max -------------------------------------------------------------------------------


def _sum_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    axis = typing.axis(op, x)
    return (computed(x.replica * x.dims[axis].degree, _without(x.dims, axis)),)


def _max_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    axis = typing.axis(op, x)
    typing.solver.equal(x.dims[axis].degree, ONE)
    return (computed(x.replica, _without(x.dims, axis)),)


def _reduced_joints(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    return [list(places) for places in _without(m.joints(op.inputs[0]), m.axis(op))]


def _inserted(index: Indices, axis: int, place: Index) -> Indices:
    return (*index[:axis], place, *index[axis:])


def _sum(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    (x,) = op.inputs
    axis = m.parts.axis(op)
    dim = m.parts.type(x).dims[axis]
    outer = divided(replica, dim.degree, m.labels.sizes)
    total: Value = ()
    for label, place in summed_over(m, m.parts.joints(x)[axis], dim.size):
        inside = m.at(x, outer, _inserted(index, axis, place))
        own = in_chunk(place, dim, replica - outer * dim.degree)
        total += summed(times(inside, own), (label,))
    return total


def _max(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    (x,) = op.inputs
    axis = m.parts.axis(op)
    if m.parts.joints(x)[axis]:
        raise UndecidedError("the largest over a concatenation")
    size = m.parts.type(x).dims[axis].size
    name, label = m.labels.make(size)
    inside = m.at(x, replica, _inserted(index, axis, Index(label, ZERO, size)))
    bound = ((name, size),) if name else ()
    return times(constant(ONE), (Factor("max", (), "max", inside, bound),))


def _compute_reduced(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    axis = run.axis(op, x)
    if op.kind == "max":
        need(x.degrees[axis] == 1, "the largest over a divided dimension")
    reduce = run.numbers.largest if op.kind == "max" else run.numbers.total
    near = np.moveaxis(reduce(x.data, (x.rank + axis,)), axis, 1)
    replicas = x.degrees[0] * x.degrees[axis]
    data = near.reshape(replicas, *near.shape[2:])
    return (Tensor(data, (replicas, *_without(x.degrees, axis)[1:]), _own_cuts(x, axis)),)


def _own_cuts(x: Tensor, axis: int) -> tuple[Cut | None, ...]:
    return (None, *_without(x.cuts, axis)[1:])


def _read_reduced(primitive: str, at: Matcher, term: Term, source: Source, known: Partial,
                  env: Env) -> Found:  # fmt: skip
    item = at.maker(source, (primitive,))
    if item is None:
        return
    axes, axis = cast("tuple[int, ...]", item.node.attr("axes")), axis_of(term)
    kept = [d for d in range(at.net.type_of(item.inputs[0]).rank) if d not in axes]
    inner = renumbered(known, dict(enumerate(kept)))
    if inner is None:
        return
    whole = (*inner[:axis], axes, *inner[axis:])
    for groups, more in at.match(term.args[0], item.inputs[0], whole, env):
        found = renumbered(_without(groups, axis), {d: k for k, d in enumerate(kept)})
        if found is not None:
            yield found, more


def _write_reduced(primitive: str, at: Writer, term: Term) -> Built:
    x, axis = at.write(term.args[0]), axis_of(term)
    gone, type_ = x.groups[axis], at.type_of(x)
    kept = [d for d in range(type_.rank) if d not in gone]
    to = {d: k for k, d in enumerate(kept)}
    sample = at.sample(primitive)
    attrs = {**dict(sample.node.attrs), "axes": tuple(sorted(gone))}
    source = at.net.make(
        primitive, (x.source,), like(type_, [type_.shape[d] for d in kept]),
        tuple(sorted(attrs.items(), key=lambda pair: pair[0])), sample,
    )  # fmt: skip
    groups = tuple(tuple(to[d] for d in group) for group in _without(x.groups, axis))
    return Built(source, groups, _without(x.cuts, axis))


# --- expand and along --------------------------------------------------------------------------


def _expand_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    x, shape = args
    axis = typing.axis(op, shape)
    if len(x.dims) != len(shape.dims) - 1:
        raise IllFormedError(f"expand of {len(x.dims)} dimensions to {len(shape.dims)}")
    typing.solver.equal(x.replica, shape.replica * shape.dims[axis].degree)
    fit_shapes(typing, x.dims, _without(shape.dims, axis))
    return (computed(shape.replica, shape.dims),)


def _along_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    vector, shape = args
    axis = typing.axis(op, shape)
    if len(vector.dims) != 1 or typing.parallel:
        raise IllFormedError("along takes a vector, on one device")
    typing.solver.equal(vector.dims[0].size, shape.dims[axis].size)
    return (computed(shape.replica, shape.dims),)


def _expand_joints(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found = [list(places) for places in m.joints(op.inputs[0])]
    return [*found[: m.axis(op)], [], *found[m.axis(op) :]]


def _along_joints(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    found: list[list[Expr]] = [[] for _ in m.type(ref).dims]
    found[m.axis(op)] = list(m.joints(op.inputs[0])[0])
    return found


def _expand(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    axis = m.parts.axis(op)
    dim = m.parts.type(ref).dims[axis]
    copy = replica * dim.degree + chunk_of(index[axis], dim)
    return m.at(op.inputs[0], copy, _without(index, axis))


def _along(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return m.at(op.inputs[0], replica, (index[m.parts.axis(op)],))


def _compute_expand(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """Minor replicas go to the chunks of the dimension, as `sum` would leave them."""
    x, shape = args
    axis = run.axis(op, shape)
    r, d = shape.degrees[0], shape.degrees[axis]
    need(x.local == _without(shape.local, axis - 1), f"expand of {x.local} to {shape.local}")
    need(x.degrees == (r * d, *_without(shape.degrees[1:], axis - 1)), "expand of other degrees")
    chunks = np.moveaxis(x.data.reshape(r, d, *x.data.shape[1:]), 1, axis)
    place = shape.rank + axis
    data = np.repeat(np.expand_dims(chunks, place), shape.local[axis - 1], axis=place)
    return (Tensor(data, shape.degrees, shape.cuts),)


def _compute_along(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    vector, shape = args
    axis = run.axis(op, shape)
    need(vector.rank == 1 and not run.parallel, "along takes a vector, on one device")
    need(vector.local[0] == shape.local[axis - 1], "along another size")
    spread_out = [1] * shape.data.ndim
    spread_out[0], spread_out[shape.rank + axis] = len(vector.data), vector.local[0]
    data = np.broadcast_to(vector.data.reshape(spread_out), shape.data.shape)
    return (Tensor(data, shape.degrees, shape.cuts),)


def _spread_from(
    at: Matcher, source: Source, groups: Partial, over: Sequence[int]
) -> tuple[Source, tuple[Group, ...]] | None:
    """The value that a value is spread from, if it is the same along all dimensions in `over`.

    Args:
        at: the program.
        source: a value with the dimensions that `groups` speak of.
        groups: those dimensions of it that it must have in full.
        over: the other dimensions.
    """
    held = {d: d for d in range(at.net.type_of(source).rank)}  # dimension -> that of `source` now
    while True:
        shape = at.net.type_of(source).shape
        if all(d not in held or shape[held[d]] == 1 for d in over):
            break
        item = at.maker(source, ("broadcast_in_dim",))
        if item is None:
            return None
        inner = at.net.type_of(item.inputs[0])
        dims = cast("tuple[int, ...]", item.node.attr("broadcast_dimensions"))
        kept = {d: k for k, d in enumerate(dims) if inner.shape[k] == shape[d]}
        held = {d: kept[now] for d, now in held.items() if now in kept}
        source = item.inputs[0]
    if any(d not in held for group in groups for d in group or ()):
        return None
    return source, tuple(tuple(held[d] for d in group or ()) for group in groups)


def _read_along(at: Matcher, term: Term, source: Source, known: Partial, env: Env) -> Found:
    axis = axis_of(term)
    if None in known:
        return
    over = [d for k, group in enumerate(known) if k != axis for d in group or ()]
    found = _spread_from(at, source, (known[axis],), over)
    if found is None or _lengths(at, found[0], found[1][0]) != _lengths(at, source, known[axis]):
        return
    yield from _with_shape(at, term, source, found, known, env)


def _lengths(at: Matcher, source: Source, group: Group | None) -> list[int]:
    return [at.net.type_of(source).shape[d] for d in group or ()]


def _with_shape(
    at: Matcher, term: Term, source: Source, inner: tuple[Source, Partial], known: Partial, env: Env
) -> Found:
    """Matches the smaller operand, then the one that gives the shape, which `source` has too."""
    for _, more in at.match(term.args[0], *inner, env):
        if term.args[1] in more:
            yield known, dict(more)
        else:
            for _, last in at.shape_of(term.args[1], source, known, more):
                yield known, last


def _read_expand(at: Matcher, term: Term, source: Source, known: Partial, env: Env) -> Found:
    axis = axis_of(term)
    if known[axis] is not None:
        known = filled(known, at.net.type_of(source))
    if None in known:
        item = at.maker(source, ("broadcast_in_dim",))
        if item is None:
            return
        dims = cast("tuple[int, ...]", item.node.attr("broadcast_dimensions"))
        rank = at.net.type_of(source).rank
        new = tuple(d for d in range(rank) if d not in dims)
        rest = tuple(d for d in range(rank) if d in dims)
        if len(known) != 2 or not new:
            return
        both = unify(known, (new, rest) if axis == 0 else (rest, new))
        if both is None:
            return
        known = both
    found = _spread_from(at, source, _without(known, axis), known[axis] or ())
    if found is not None:
        yield from _with_shape(at, term, source, found, known, env)


def _write_spread(at: Writer, term: Term) -> Built:
    """A smaller array repeated over the other axes of the second operand's shape."""
    x, axis, to = at.write(term.args[0]), axis_of(term), at.shape_of(term.args[1])
    axes = [axis] if term.kind == "along" else [k for k in range(len(to.groups)) if k != axis]
    dims: dict[int, int] = {}
    for own, k in enumerate(axes):
        at.equal_sizes(x, own, to, k)
        dims |= dict(zip(x.groups[own], to.groups[k], strict=True))
    order = sorted(dims, key=dims.__getitem__)
    small = reshaped(at.net, at.ordered(x, order), [at.type_of(x).shape[d] for d in order])
    source = spread(at.net, small, at.type_of(to).shape, [dims[d] for d in order])
    return Built(source, to.groups, ((),) * len(to.groups))


# --- records -----------------------------------------------------------------------------------


def _reduction_form(primitive: str) -> Form:
    read, write = partial(_read_reduced, primitive), partial(_write_reduced, primitive)
    return Form((primitive,), read, write)


REDUCTIONS = (
    RuleOp(
        name="sum", operands=(1, 1), params=("axis",), fewer=1, sums=True,
        replicas_apart=True, type=_sum_type, joints=_reduced_joints, value=_sum,
        compute=_compute_reduced, form=_reduction_form("reduce_sum"),
    ),
    RuleOp(
        name="max", operands=(1, 1), params=("axis",), fewer=1, replicas_apart=True,
        type=_max_type, joints=_reduced_joints, value=_max, compute=_compute_reduced,
        form=_reduction_form("reduce_max"),
    ),
    RuleOp(
        name="expand", operands=(2, 2), params=("axis",), like=1,
        shape_only=True, moves=True, replicas_apart=True, type=_expand_type,
        joints=_expand_joints, value=_expand, compute=_compute_expand,
        form=Form(("broadcast_in_dim",), _read_expand, _write_spread, only=False),
    ),
    RuleOp(
        name="along", operands=(2, 2), params=("axis",), like=1,
        shape_only=True, moves=True, type=_along_type, joints=_along_joints, value=_along,
        compute=_compute_along, form=Form((), _read_along, _write_spread, only=False),
    ),
)  # fmt: skip
