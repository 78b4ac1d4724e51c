# pyright: basic
"""Derivative rules of calls with custom derivatives, as programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ir import jax_internals as internals
from ir.trace import Traced, trace

Array = Any


def flows(eqn: Any) -> list[bool]:
    """For each operand, whether it has a gradient."""
    return [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in eqn.invars]


def merged(values: Sequence[Array], moving: Sequence[Array], which: Sequence[bool]) -> list[Array]:
    """The values with `moving` in the marked places."""
    fresh = iter(moving)
    return [next(fresh) if moves else x for x, moves in zip(values, which, strict=True)]


def chosen(values: Sequence[Any], which: Sequence[bool]) -> list[Any]:
    """The marked values."""
    return [x for x, wanted in zip(values, which, strict=True) if wanted]


def rule_of(eqn: Any) -> tuple[Traced, Traced]:
    """Traces a call's forward function with residuals, and its derivative.

    The first maps operands to results and residuals; the second maps residuals and the gradients of
    the results to the gradients of the operands.
    """
    which, trees = flows(eqn), []
    outs = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in eqn.outvars]

    def forward(*xs: Array) -> tuple[list[Array], list[Array]]:
        found, pull = jax.vjp(
            lambda *moving: internals.run_equation(eqn, merged(xs, moving, which), {}),
            *chosen(xs, which),
        )
        kept, tree = jax.tree.flatten(pull)
        trees.append(tree)
        return list(found), kept

    def backward(kept: Sequence[Array], slopes: Sequence[Array]) -> list[Array]:
        none = [np.zeros(var.aval.shape, jax.dtypes.float0) for var in eqn.outvars]
        return list(jax.tree.unflatten(trees[-1], kept)(merged(none, slopes, outs)))

    first = trace(forward, *(internals.struct_of(var.aval) for var in eqn.invars))
    results = [internals.struct_of(aval) for aval in first.closed.out_avals]
    count = len(eqn.outvars)
    return first, trace(backward, results[count:], chosen(results[:count], outs))
