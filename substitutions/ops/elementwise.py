"""Ops that act on each element alone.

exp, rsqrt, tanh and cast are unknown functions of an element, as is 1 / y in x / y.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ir import Literal, TensorType, dtype_kind

from ..graph import Op, Ref
from ..numeric.arrays import Array, Numbers, need
from ..numeric.devices import Run, Tensor
from ..program.matcher import Env, Found, Matcher, Partial
from ..program.net import Source
from ..program.nodes import binary
from ..program.writer import Built, NoFitError, Writer
from ..symbolic.expr import ONE, Expr, as_expr
from ..symbolic.meaning import Indices, Meaning, chunk_of
from ..symbolic.types import (
    UNDIVIDED,
    Dim,
    IllFormedError,
    Type,
    Typing,
    computed,
    fit_rank,
    fit_shapes,
    same_cut,
)
from ..symbolic.values import Factor, Value, constant, product, scaled, times
from ..term import Term
from .record import RELU, Form, RuleOp

Combine = Callable[[Numbers, Array, Array], Array]
Apply = Callable[[Numbers, Array], Array]


# --- types -------------------------------------------------------------------------------------


def same_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    """The type of the first operand."""
    return (computed(args[0].replica, args[0].dims),)


def _pair_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    x, y = args
    if len(x.dims) != len(y.dims):
        raise IllFormedError(f"{op.kind} of {len(x.dims)} and {len(y.dims)} dimensions")
    typing.solver.equal(x.replica, y.replica)
    dims: list[Dim] = []
    for a, b in zip(x.dims, y.dims, strict=True):
        fit_shapes(typing, (a,), (b,))
        dims.append(replace(a, cut=a.cut if same_cut(typing, a.cut, b.cut) else None))
    return (computed(x.replica, dims),)


def _scale_type(typing: Typing, op: Op, args: Sequence[Type], where: str) -> tuple[Type, ...]:
    """The factor is on as many devices as the tensor."""
    x, factor = args
    fit_rank(op, factor, 0)
    devices = math.prod((dim.degree for dim in x.dims), start=x.replica)
    typing.solver.equal(factor.replica, devices)
    return same_type(typing, op, args, where)


# --- elements ----------------------------------------------------------------------------------


def _each(of: Callable[[Value], Value], m: Meaning, op: Op, ref: Ref, replica: Expr,
          index: Indices) -> Value:  # fmt: skip
    return of(m.at(op.inputs[0], replica, index))


def _pair(of: Callable[[Value, Value], Value], m: Meaning, op: Op, ref: Ref, replica: Expr,
          index: Indices) -> Value:  # fmt: skip
    a, b = (m.at(r, replica, index) for r in op.inputs)
    return of(a, b)


def _scale(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """Each device has a factor; devices are counted replica by replica, then chunk by chunk."""
    x, factor = op.inputs
    device = replica
    for i, dim in zip(index, m.parts.type(x).dims, strict=True):
        device = device * dim.degree + chunk_of(i, dim)
    return product(m.at(x, replica, index), m.at(factor, device, ()))


def function(name: str, value: Value) -> Value:
    """An unknown function of a value; of relu it is known that relu(relu(x)) = relu(x)."""
    return times(constant(ONE), (Factor("fn", (), name, value),))


def activated(op: Op, value: Value) -> Value:
    """The value, after relu if the op has that for its activation."""
    return function("relu", value) if op.get("activation", 0) == RELU else value


def _negated(value: Value) -> Value:
    return scaled(value, as_expr(-1))


def _difference(a: Value, b: Value) -> Value:
    return a + _negated(b)


def _quotient(a: Value, b: Value) -> Value:
    return product(a, function("reciprocal", b))


# --- numbers -----------------------------------------------------------------------------------


def _compute_each(of: Apply, op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    (x,) = args
    return (Tensor(of(run.numbers, x.data), x.degrees, x.cuts),)


def _compute_pair(of: Combine, op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    a, b = args
    need(a.degrees == b.degrees, f"{op.kind} of degrees {a.degrees} and {b.degrees}")
    need(a.local == b.local, f"{op.kind} of {a.local} and {b.local} on a device")
    cuts = tuple(x if x == y else None for x, y in zip(a.cuts, b.cuts, strict=True))
    return (Tensor(of(run.numbers, a.data, b.data), a.degrees, cuts),)


def _compute_scale(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    x, s = args
    need(s.rank == 0, "the factor is not a scalar")
    devices = math.prod(x.degrees)
    need(s.degrees[0] == devices, f"a factor on {s.degrees[0]} devices, a tensor on {devices}")
    factors = s.data.reshape(*x.degrees, *(1 for _ in x.local))
    return (Tensor(run.numbers.mul(x.data, factors), x.degrees, x.cuts),)


def compute_activated(op: Op, data: Array, run: Run) -> Array:
    """As `activated`, in numbers."""
    return run.numbers.relu(data) if op.get("activation", 0) == RELU else data


# --- in programs -------------------------------------------------------------------------------


def _read_each(primitive: str, at: Matcher, term: Term, source: Source, known: Partial,
               env: Env) -> Found:  # fmt: skip
    item = at.maker(source, (primitive,))
    if item is not None and len(item.inputs) == 1:
        yield from at.match(term.args[0], item.inputs[0], known, env)


def _write_each(primitive: str, at: Writer, term: Term) -> Built:
    x, item = at.write(term.args[0]), at.sample(primitive)
    made = at.net.make(primitive, (x.source,), at.type_of(x), item.node.attrs, item)
    return replace(x, source=made)


def _read_pair(ops: Sequence[str], at: Matcher, term: Term, source: Source, known: Partial,
               env: Env) -> Found:  # fmt: skip
    item = at.maker(source, ops)
    if item is None:
        return
    left, right = term.args
    for k in range(2 if item.inputs[0] != item.inputs[1] else 1):
        a, b = item.inputs[k], item.inputs[1 - k]
        # a variable on the left says nothing of the term on the right
        if not at.may_be(left, a, env) or not (left.kind or at.may_be(right, b, env)):
            continue
        # a value that is spread may be a scalar
        spread = right.kind and not at.makers[right.kind]
        if not at.same_shape(a, source) or not (spread or at.same_shape(b, source)):
            continue
        for groups, more in at.match(left, a, known, env):
            yield from at.match(right, b, groups, more)


def _write_pair(primitive: str, at: Writer, term: Term) -> Built:
    x, y = map(at.write, term.args)
    return replace(x, source=binary(at.net, primitive, x.source, at.aligned(y, x)))


def _read_scale(at: Matcher, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = at.maker(source, ("mul",))
    for x, s in _both_ways(at, item.inputs if item else ()):
        if not at.net.type_of(s).rank and at.same_shape(x, source):
            for groups, more in at.match(term.args[0], x, known, env):
                for _, last in at.match(term.args[1], s, (), more):
                    yield groups, last


def _both_ways(at: Matcher, inputs: Sequence[Source]) -> list[tuple[Source, Source]]:
    """Each operand with the scalar that the other one was spread from."""
    return [(x, at.scalar_of(y)) for x, y in zip(inputs, inputs[::-1], strict=True)]


def _write_scale(at: Writer, term: Term) -> Built:
    x, s = map(at.write, term.args)
    if at.type_of(s).dtype != at.type_of(x).dtype:
        raise NoFitError
    return replace(x, source=binary(at.net, "mul", x.source, s.source))


def _read_relu(at: Matcher, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = at.maker(source, ("max",))
    for x, zero in _both_ways(at, item.inputs if item else ()):
        if _is_zero(zero) and at.same_shape(x, source):
            yield from at.match(term.args[0], x, known, env)


def _is_zero(source: Source) -> bool:
    """Whether a value is the number zero, and not the negative one: the larger of both is 0."""
    if not isinstance(source, Literal) or dtype_kind(source.type.dtype) not in ("float", "int"):
        return False
    value = source.value
    return value == 0 and not (isinstance(value, float) and math.copysign(1.0, value) < 0)


def _write_relu(at: Writer, term: Term) -> Built:
    x = at.write(term.args[0])
    type_ = at.type_of(x)
    zero = Literal(0.0 if dtype_kind(type_.dtype) == "float" else 0, TensorType((), type_.dtype))
    return replace(x, source=at.net.make("max", (x.source, zero), type_, ()))


def _write_cast(at: Writer, term: Term) -> Built:
    x, item = at.write(term.args[0]), at.sample("convert_element_type")
    if term.args[0].kind == "transpose":  # is not left to those that read the cast
        x = at.settled(x)
    node = item.node
    type_ = TensorType(at.type_of(x).shape, str(node.attr("new_dtype")))
    return replace(x, source=at.net.make(node.op, (x.source,), type_, node.attrs, item))


# --- records -----------------------------------------------------------------------------------


def _unary(name: str, of: Callable[[Value], Value], compute: Apply, form: Form) -> RuleOp:
    return RuleOp(
        name=name, operands=(1, 1), replicas_apart=True, type=same_type, value=partial(_each, of),
        compute=partial(_compute_each, compute), form=form,
    )  # fmt: skip


def _function(name: str, primitive: str = "") -> RuleOp:
    primitive = primitive or name
    form = Form((primitive,), partial(_read_each, primitive), partial(_write_each, primitive))
    made = _unary(name, partial(function, name), lambda of, x: of.function(name, x), form)
    return replace(made, fractions=True)


def _binary(
    name: str, of: Callable[[Value, Value], Value], compute: Combine, form: Form | None = None
) -> RuleOp:
    return RuleOp(
        name=name, operands=(2, 2), replicas_apart=True, type=_pair_type, value=partial(_pair, of),
        compute=partial(_compute_pair, compute), form=form,
    )  # fmt: skip


def _form(*primitives: str) -> Form:
    return Form(primitives, partial(_read_pair, primitives), partial(_write_pair, primitives[0]))


_CAST = "convert_element_type"
_NEG = Form(("neg",), partial(_read_each, "neg"), partial(_write_each, "neg"))
ELEMENTWISE = (
    _binary("add", lambda a, b: a + b, lambda of, a, b: of.add(a, b), _form("add", "add_any")),
    _binary("mul", product, lambda of, a, b: of.mul(a, b), _form("mul")),
    _binary("sub", _difference, lambda of, a, b: of.add(a, of.neg(b))),
    replace(
        _binary("div", _quotient, lambda of, a, b: of.mul(a, of.function("reciprocal", b))),
        fractions=True,
    ),
    RuleOp(
        name="scale", operands=(2, 2), scalars=1, restrictions=(UNDIVIDED,),
        type=_scale_type, value=_scale, compute=_compute_scale,
        form=Form(("mul",), _read_scale, _write_scale),
    ),
    _unary("neg", _negated, lambda of, x: of.neg(x), _NEG),
    _unary(
        "relu", partial(function, "relu"), lambda of, x: of.relu(x),
        Form(("max",), _read_relu, _write_relu),
    ),
    _function("exp"),
    _function("rsqrt"),
    _function("tanh"),
    _unary(
        "cast", partial(function, "cast"), lambda of, x: of.cast(x),
        Form((_CAST,), partial(_read_each, _CAST), _write_cast),
    ),
)  # fmt: skip
