# pyright: basic
"""A traced loss as a flat list of equations that can be run one by one and differentiated.

Calls that only group equations are opened; calls with derivatives of their own, loops, branches
and recomputed regions stay whole, so that a part of the program has the same derivative as in the
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ir import jax_internals as internals
from ir import lookup
from ir.jax_internals import bodies_of, equations, params_of

from ...common.errors import PlanError
from ...sharding.nested_maps import check_maps_in

HEAVY = ("contraction", "convolution", "control", "linalg", "opaque", "collective")

Key = Any  # of a value: a number, or a tuple for a part of one
Array = Any


@dataclass(frozen=True, slots=True)
class Literal:
    """A number written into the program."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One equation on numbered values."""

    eqn: Any
    ins: tuple[int | Literal, ...]
    outs: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.eqn.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        return params_of(self.eqn)

    @property
    def reads(self) -> tuple[int, ...]:
        """Values that it reads."""
        return tuple(v for v in self.ins if not isinstance(v, Literal))

    def run(self, operands: Sequence[Array]) -> list[Array]:
        """Results for these operands, one for each of `ins`."""
        return internals.run_equation(self.eqn, operands, {})


@dataclass(frozen=True)
class Equations:
    """A program of parameters and a batch.

    avals: shape and type of every value.
    params, batch: values of the leaves of the two arguments.
    consts: captured arrays by value.
    outputs: the loss and the leaves of aux.
    """

    avals: tuple[Any, ...]
    params: tuple[int, ...]
    batch: tuple[int, ...]
    consts: dict[int, Any]
    ops: tuple[Op, ...]
    outputs: tuple[int | Literal, ...]


def open_loss(loss_fn: Callable[..., Any], params: Any, batch: Any) -> Equations:
    """Traces `loss_fn(params, batch)`; nothing is computed.

    Args:
        loss_fn: returns the loss, or (loss, aux).
        params: pytree of arrays or structs.
        batch: the same.

    Raises:
        PlanError: if the program has effects, which must not happen once for every part of it, or
            divides the devices by itself.
    """
    closed = jax.make_jaxpr(loss_fn)(params, batch)
    check_maps_in(closed)
    if closed.effects:
        raise PlanError(
            f"has effects ({', '.join(sorted(map(str, closed.effects)))}), which a pipeline cannot "
            "keep in order", kind="bad-loss", where="loss_fn",
            remedy="remove debug prints and callbacks, or plan with pipeline='off'",
        )  # fmt: skip
    walk = _Walk()
    heads = [walk.new(v.aval) for v in closed.jaxpr.constvars]
    args = [walk.new(v.aval) for v in closed.jaxpr.invars]
    env: dict[Any, int | Literal] = dict(
        zip((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*heads, *args), strict=True)
    )
    walk.consts |= dict(zip(heads, closed.consts, strict=True))
    outputs = walk.body(closed.jaxpr, env)
    count = len(jax.tree.leaves(params))
    return Equations(
        tuple(walk.avals), tuple(args[:count]), tuple(args[count:]), walk.consts,
        _alive(walk.ops, outputs), outputs,
    )  # fmt: skip


class _Walk:
    def __init__(self) -> None:
        self.avals: list[Any] = []
        self.ops: list[Op] = []
        self.consts: dict[int, Any] = {}

    def new(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def body(self, jaxpr: Any, env: dict[Any, int | Literal]) -> tuple[int | Literal, ...]:
        def read(var: Any) -> int | Literal:
            return Literal(var.val) if isinstance(var, internals.Literal) else env[var]

        for eqn in jaxpr.eqns:
            ins = tuple(read(var) for var in eqn.invars)
            group = internals.group_of(eqn)
            if group is not None:
                results = self.call(group, ins)
            else:
                results = tuple(self.new(var.aval) for var in eqn.outvars)
                self.ops.append(Op(eqn, ins, results))
            env.update(zip(eqn.outvars, results, strict=True))
        return tuple(read(var) for var in jaxpr.outvars)

    def call(self, inner: Any, ins: Sequence[int | Literal]) -> tuple[int | Literal, ...]:
        jaxpr, consts = internals.opened(inner)
        heads = [self.new(var.aval) for var in jaxpr.constvars]
        self.consts |= dict(zip(heads, consts, strict=True))
        env: dict[Any, int | Literal] = dict(
            zip((*jaxpr.constvars, *jaxpr.invars), (*heads, *ins), strict=True)
        )
        return self.body(jaxpr, env)


def _alive(ops: list[Op], outputs: Sequence[int | Literal]) -> tuple[Op, ...]:
    """Ops that some output depends on."""
    wanted = {v for v in outputs if not isinstance(v, Literal)}
    kept: list[Op] = []
    for op in reversed(ops):
        if not wanted.isdisjoint(op.outs):
            kept.append(op)
            wanted.update(op.reads)
    return tuple(reversed(kept))


def is_heavy(eqn: Any) -> bool:
    """Whether an equation costs more than a pass over its data, or holds one that does."""
    inner = bodies_of(eqn)
    if inner and eqn.primitive.name not in ("scan", "while", "cond"):
        return any(is_heavy(e) for body in inner for e in equations(body))
    return lookup(eqn.primitive.name).family in HEAVY


def flops(eqn: Any, *, others: bool = True) -> float:
    """Floating-point operations: products inside, times the length of loops, else one each.

    Args:
        eqn: the equation.
        others: count what is no product too.
    """
    name, params = eqn.primitive.name, params_of(eqn)
    if name == "cond":
        return max(sum(flops(e, others=others) for e in equations(b)) for b in params["branches"])
    inner = bodies_of(eqn, "body_jaxpr")
    if inner:
        times = params["length"] if name == "scan" else 1
        return float(times) * sum(
            flops(e, others=others) for body in inner for e in equations(body)
        )
    out = sum(float(v.aval.size) for v in eqn.outvars if hasattr(v.aval, "size"))
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        for d in contracted:
            out *= shape[d]
        return 2.0 * out
    if name == "conv_general_dilated":
        kernel, numbers = eqn.invars[1].aval, params["dimension_numbers"].rhs_spec
        return 2.0 * out * kernel.size / max(kernel.shape[numbers[0]], 1)
    return out if others else 0.0


def size_bytes(aval: Any) -> float:
    """Bytes of a value."""
    return float(getattr(aval, "size", 0)) * getattr(aval.dtype, "itemsize", 8)


def is_float(aval: Any) -> bool:
    """Whether a gradient can flow through a value."""
    return jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact)
