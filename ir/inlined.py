# pyright: basic
"""Equations for which others are read: calls, solvers, reductions over an axis of `jax.vmap`.

A scatter that adds numbers of 16 bits adds them in float32 if so many meet in one place that a sum
of equal ones stops growing: 256 of bfloat16, as in the gradient of a table of relative positions.
Each addition rounds, and GPUs compare and swap words until one wins, which took seconds on an H200.
It is the only operation that a plan rounds less often than the program; plans name it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .errors import TraceError
from .jax_internals import struct_of
from .types import HALVES

# Calls that only group equations, and those with custom derivatives -> the parameter that holds the
# body.
_GROUPS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
}
_DERIVED = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
# Primitives with custom derivatives that only compose other functions, and some that do more:
# inlining the latter would lose their recomputation.
_EXPANDED = "call_hi_primitive"
_RECOMPUTED = ("OptRemat", "RematTraced")
# Primitives of Equinox that only check or choose under transformations, and Lineax's solver, whose
# derivatives are its own; transformations are done by then: their implementations are read in their
# place.
_SEEN_THROUGH = (
    "linear_solve", "maybe_set", "nonbatchable", "nontraceable", "select_if_vmap", "unvmap_all",
    "unvmap_any", "unvmap_max", "vprim",
)  # fmt: skip
# Likewise: a solver, which differs from its operations under differentiation only, and a collective
# over an axis of `jax.vmap`, which is a reduction once the axis is a dimension.
_SOLVE = "custom_linear_solve"
_REDUCTIONS = ("pmax", "pmin", "psum")
_ADDS = "scatter-add"
_CALLED = ("call_jaxpr", "fun_jaxpr", "jaxpr", "body_jaxpr")


def group_of(eqn: Any) -> Any:
    """The jaxpr of a call that only groups equations; None for any other equation."""
    return eqn.params.get(_GROUPS.get(eqn.primitive.name))


def inlined(eqn: Any) -> Any:
    """The jaxpr to inline in place of an equation; None if there is none.

    Raises:
        TraceError: if inlining would lose the equation's recomputation.
    """
    name = eqn.primitive.name
    if name == _EXPANDED:
        return _expanded(eqn)
    if name in _SEEN_THROUGH or name == _SOLVE or _is_reduction(eqn):
        return _implemented(eqn)
    if name == "device_put" and len(eqn.invars) > 1:
        return _one_by_one(eqn)
    if name == _ADDS and _meet(eqn):
        return _added_wide(eqn)
    body = eqn.params.get(_DERIVED.get(name))
    return group_of(eqn) if body is None else body


def _is_reduction(eqn: Any) -> bool:
    """Whether an equation reduces over dimensions, and not over axes of a mesh."""
    if eqn.primitive.name not in _REDUCTIONS or eqn.params["axis_index_groups"] is not None:
        return False
    return all(isinstance(axis, int) for axis in eqn.params["axes"])


def _meet(eqn: Any) -> bool:
    """Whether so many 16-bit numbers meet in a place that a sum of equal ones stops growing."""
    table, indices = eqn.invars[0].aval, eqn.invars[1].aval
    if str(table.dtype) not in HALVES or eqn.params["unique_indices"]:
        return False
    numbers = eqn.params["dimension_numbers"]
    dims = (*numbers.scatter_dims_to_operand_dims, *numbers.operand_batching_dims)
    places = math.prod(table.shape[d] for d in dims)
    return math.prod(indices.shape[:-1]) >= places * 2.0 / float(jnp.finfo(table.dtype).eps)


def _added_wide(eqn: Any) -> Any:
    """A scatter that adds in float32."""
    kept = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    how = {key: eqn.params[key] for key in kept}

    def run(table: Any, indices: Any, updates: Any) -> Any:
        wide, added = (x.astype(jnp.float32) for x in (table, updates))
        return lax.scatter_add(wide, indices, added, **how).astype(table.dtype)

    return jax.make_jaxpr(run)(*[struct_of(var.aval) for var in eqn.invars])


def added_wide(jaxpr: Any) -> int:
    """Number of scatters in a jaxpr, those of its bodies included, that add in float32."""
    here = sum(eqn.primitive.name == _ADDS and _meet(eqn) for eqn in jaxpr.eqns)
    bodies = (body for eqn in jaxpr.eqns for body in bodies_of(eqn))
    return here + sum(added_wide(getattr(body, "jaxpr", body)) for body in bodies)


def _implemented(eqn: Any) -> Any:
    """The operations that a primitive's implementation consists of."""
    run = functools.partial(eqn.primitive.impl, **eqn.params)
    return jax.make_jaxpr(run)(*[struct_of(var.aval) for var in eqn.invars])


def _one_by_one(eqn: Any) -> Any:
    """A `device_put` of several arrays, as one of each."""
    each_one = zip(*eqn.params.values(), strict=True)
    places = [dict(zip(eqn.params, each, strict=True)) for each in each_one]

    def run(*xs: Any) -> list[Any]:
        alone = zip(xs, places, strict=True)
        return [
            eqn.primitive.bind(x, **{key: (value,) for key, value in each.items()})[0]
            for x, each in alone
        ]

    return jax.make_jaxpr(run)(*[struct_of(var.aval) for var in eqn.invars])


def _expanded(eqn: Any) -> Any:
    """The lowering of a high-level primitive of JAX 0.11 and later."""
    kind = type(eqn.params["_prim"]).__name__
    if kind in _RECOMPUTED:
        raise TraceError(
            f"the program holds a '{kind}', which Meshwright cannot read yet",
            remedy="trace it with jax.config.update('jax_remat3', False)",
        )
    structs = [struct_of(var.aval) for var in eqn.invars]
    return jax.make_jaxpr(lambda *xs: eqn.primitive.to_lojax(*xs, **eqn.params))(*structs)


def bodies_of(eqn: Any) -> list[Any]:
    """The jaxprs that an equation runs, without the test of a loop."""
    if eqn.primitive.name == _EXPANDED:
        return [_expanded(eqn)]
    bodies = [eqn.params[key] for key in _CALLED if key in eqn.params]
    return [*bodies, *eqn.params.get("branches", ())]
