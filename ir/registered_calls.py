# pyright: basic
"""Functions of users as ops: each call is one primitive, which runs the function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .errors import IRError
from .graph import Input
from .jax_compilers import function_primitive
from .jax_internals import struct_of
from .jaxpr import read_jaxpr, tensor_type
from .registered import REGISTERED, RegisteredCall, RegisteredOp, attributes
from .types import TensorType

Array = Any


def _batched(operands: Sequence[bool], params: dict[str, Any]) -> dict[str, Any]:
    call: RegisteredCall = params["call"]
    results = len(call.factors.partition("->")[2].split(","))
    return {**params, "call": call.batched(operands, results)}


_PRIMITIVE = function_primitive(REGISTERED, _batched)


def as_op(function: Callable[..., Any], op: RegisteredOp) -> Callable[..., Any]:
    """The function, each of whose calls is one op of a traced program.

    Positional arguments are pytrees of arrays, keyword arguments are settings.

    Args:
        function: of arrays and settings to a pytree of arrays.
        op: its registration.
    """
    bodies: dict[Any, tuple[str, Any]] = {}

    def on_leaves(tree: Any, settings: Mapping[str, Any]) -> Callable[..., list[Array]]:
        def run(*leaves: Array) -> list[Array]:
            return jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves), **settings))

        return run

    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        if traced := sorted(k for k, v in settings.items() if isinstance(v, jax.Array)):
            raise IRError(
                f"its keyword argument '{traced[0]}' is an array", where=f"op '{op.name}'",
                remedy="pass arrays by position, and settings by keyword",
            )  # fmt: skip
        leaves, tree = jax.tree.flatten(args)
        types = tuple(tensor_type(jax.typeof(leaf)) for leaf in leaves)
        key = tree, types, repr(sorted(settings.items()))
        if key not in bodies:
            structs = [struct_of(jax.typeof(leaf)) for leaf in leaves]
            bodies[key] = _body(op, functools.partial(function, **settings), tree, structs, types)
        body, out_tree = bodies[key]
        run = on_leaves(tree, settings)
        this = RegisteredCall(op, op.factors, body=body)
        return jax.tree.unflatten(out_tree, _PRIMITIVE.bind(*leaves, function=run, call=this))

    return call


def _body(
    op: RegisteredOp, function: Callable[..., Any], tree: Any, structs: Sequence[Any],
    types: tuple[TensorType, ...],
) -> tuple[str, Any]:  # fmt: skip
    """Digest of what a call computes, and the tree of its results; the factors are checked."""
    closed, found = jax.make_jaxpr(function, return_shape=True)(*jax.tree.unflatten(tree, structs))
    inputs = [Input(f"in{k}", type_, "body") for k, type_ in enumerate(types)]
    program = read_jaxpr(closed.jaxpr, closed.consts, inputs)
    attributes(RegisteredCall(op, op.factors), types, [*map(tensor_type, closed.out_avals)])
    return program.graph.digest, jax.tree.structure(found)
