# pyright: basic
"""A traced loss as a list of equations that can be cut, and what each of them computes.

Recomputed regions stay whole, as calls with derivatives of their own do, so that a part of the
program has the same derivative as in the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from ir import lookup
from ir.jax_internals import bodies_of, equations, params_of

from ...common.errors import PlanError
from ...sharding.nested_maps import check_maps_in
from ...training.equation_list import Equation, Written, straight

HEAVY = ("contraction", "convolution", "control", "linalg", "opaque", "collective")

Key = Any  # of a value: a number, or a tuple for a part of one
Array = Any


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
    ops: tuple[Equation, ...]
    outputs: tuple[int | Written, ...]


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
    program, count = straight(closed), len(jax.tree.leaves(params))
    return Equations(
        program.avals, program.inputs[:count], program.inputs[count:], program.consts,
        program.needed(program.outputs), program.outputs,
    )  # fmt: skip


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
    inner = [sum(flops(e, others=others) for e in equations(body)) for body in bodies_of(eqn)]
    if inner:
        times = params["length"] if name == "scan" else 1
        return float(times) * (max(inner) if name == "cond" else sum(inner))
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
