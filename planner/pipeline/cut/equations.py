# pyright: basic
"""A traced loss as a list of equations, with the operations and bytes of each.

Recomputed regions and calls with custom derivatives stay whole, so that a part of the program has
the same derivative as in the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from ir import lookup
from ir.inlined import bodies_of
from ir.jax_internals import equations, params_of, without_references
from ir.trace import cudnn_assumed

from ...common.errors import PlanError
from ...sharding.nested_maps import check_maps_in
from ...training.equation_list import Equation, Written, straight

HEAVY = ("contraction", "convolution", "control", "linalg", "opaque", "collective")

Key = Any  # names a value (its number), or a part of one (a tuple)
Array = Any


@dataclass(frozen=True)
class Equations:
    """The equations of a loss of (parameters, batch).

    avals: shape and type of every value.
    params, batch: value numbers of the leaves of the two arguments.
    consts: captured arrays by value.
    outputs: the loss and the leaves of aux.
    """

    avals: tuple[Any, ...]
    params: tuple[int, ...]
    batch: tuple[int, ...]
    consts: dict[int, Any]
    ops: tuple[Equation, ...]
    outputs: tuple[int | Written, ...]


@cudnn_assumed()
def open_loss(loss_fn: Callable[..., Any], params: Any, batch: Any) -> Equations:
    """Traces `loss_fn(params, batch)`; nothing is computed.

    Args:
        loss_fn: function of (params, batch) that returns the loss, or (loss, aux).
        params: pytree of arrays or structs.
        batch: pytree of arrays or structs.

    Raises:
        PlanError: if the program has effects, whose order a pipeline cannot keep, or contains
            `shard_map`.
    """
    closed = without_references(jax.make_jaxpr(loss_fn)(params, batch))
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
    """Whether an equation is more than elementwise, or contains one that is."""
    inner = bodies_of(eqn)
    if inner and eqn.primitive.name not in ("scan", "while", "cond"):
        return any(is_heavy(e) for body in inner for e in equations(body))
    return lookup(eqn.primitive.name).family in HEAVY


def flops(eqn: Any, *, others: bool = True) -> float:
    """Floating-point operations: 2 m n k of products, times loop lengths; one per other element.

    Args:
        eqn: the equation.
        others: whether to count ops that are not products.
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
    """Bytes of a value of this shape and type."""
    return float(getattr(aval, "size", 0)) * getattr(aval.dtype, "itemsize", 8)


def is_float(aval: Any) -> bool:
    """Whether a value of this type has a gradient."""
    return jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact)
