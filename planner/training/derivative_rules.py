# pyright: basic
"""Calls with derivatives of their own in which something changes: their rules as programs."""

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
    """Which operands have a gradient."""
    return [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in eqn.invars]


def merged(values: Sequence[Array], moving: Sequence[Array], which: Sequence[bool]) -> list[Array]:
    """The values, with others in place of those that move."""
    fresh = iter(moving)
    return [next(fresh) if moves else x for x, moves in zip(values, which, strict=True)]


def chosen(values: Sequence[Any], which: Sequence[bool]) -> list[Any]:
    """Those that are marked."""
    return [x for x, wanted in zip(values, which, strict=True) if wanted]


def rule_of(eqn: Any) -> tuple[Traced, Traced]:
    """What a call computes with what its derivative keeps, and its derivative.

    The first takes the operands, and gives the results and what is kept; the second takes what is
    kept and gradients of the results that have some, and gives those of the operands.
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
