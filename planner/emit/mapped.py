# pyright: basic
"""The user's `shard_map` inside of a plan's: its body runs on the shards that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from ir import (
    COLLECTIVE_DIMS,
    PLAIN_COLLECTIVES,
    Mesh,
    Node,
    Sharding,
    TensorType,
    left_axes,
    mapped_axes,
    mapped_parts,
    part_name,
    parts_split,
)
from ir.analysis import Place
from ir.evaluate import AsTraced, Hooks, Scope, bind_global, unchanged
from ir.trace import Binding

from .local_op import LocalOp

Array = Any


def shard_map(
    op: LocalOp,
    operands: Sequence[Array],
    run_op: Callable[[LocalOp, Sequence[Array]], list[Array]],
) -> list[Array]:
    """Runs the body of a `shard_map` on local shards; the plan's axes have the names of its mesh.

    An axis of size 1 is none of the plan's: the body runs under `jax.vmap` over it.

    Args:
        op: the `shard_map`.
        operands: shards, split along parts by axes that it leaves to the compiler.
        run_op: runs an op of the body that is split along parts.
    """
    body = op.binding.bodies[0]
    run_body = _split(op, run_op)
    scope = Scope(body, (), Hooks(unchanged, unchanged, run_body or _on_shards), AsTraced())

    def run(*shards: Array) -> tuple[Array, ...]:
        return tuple(scope.run([*body.consts, *shards]))

    for name, size in mapped_axes(op.node.attr("mesh")).items():
        if size == 1:
            run = _over_one(run, name)
    return list(run(*operands))


def _split(op: LocalOp, run_op: Callable[[LocalOp, Sequence[Array]], list[Array]]) -> Any:
    """Runs ops of a body of which the plan splits parts; None where it splits none."""
    left, node = left_axes(op.node.attr("auto")), op.node
    count = len(parts_split(node, {}))
    numbers = {part_name(part): part for part in range(count)}
    axes = {
        axis: numbers[role]
        for axis, role in zip(op.mesh.names, op.strategy.roles, strict=True)
        if axis in left and role in numbers
    }
    if not axes:
        return None
    parts, mesh = mapped_parts(node), Mesh(tuple((a, op.mesh.size(a)) for a in axes))

    def run(
        place: Place, inner: Node, binding: Binding, types: Sequence[TensorType],
        operands: Sequence[Array],
    ) -> list[Array]:  # fmt: skip
        roles = [parts.factor(place, part) for part in axes.values()]
        if not any(roles) or inner.op in (*PLAIN_COLLECTIVES, *COLLECTIVE_DIMS):
            return _on_shards(place, inner, binding, types, operands)
        strategy = parts.strategy(place, roles, mesh)
        found = run_op(LocalOp(inner, binding, tuple(types), strategy, mesh), operands)
        states = zip(found, strategy.results, strict=True)
        return [_added(x, state) for x, state in states]

    return run


def _added(x: Array, state: Sharding) -> Array:
    """A partial sum, added up."""
    axes = tuple(axis for axis, _ in state.partial)
    return lax.psum(x, axes) if axes else x


def _over_one(run: Callable[..., tuple[Array, ...]], name: str) -> Callable[..., tuple[Array, ...]]:
    """The function under an axis of size 1."""
    mapped = jax.vmap(run, in_axes=None, out_axes=0, axis_name=name, axis_size=1)
    return lambda *shards: tuple(lax.squeeze(x, (0,)) for x in mapped(*shards))


def _on_shards(
    place: Place, node: Node, binding: Binding, types: Sequence[TensorType],
    operands: Sequence[Array],
) -> list[Array]:  # fmt: skip
    """Runs an op of the body; what only says over which axes a value varies has no effect."""
    del place, types
    if node.op in _VARYING:
        return list(operands)
    if node.op == "psum_invariant":
        params = binding.params
        return [lax.psum(x, params["axes"]) for x in operands]
    if node.op == "all_gather_invariant":
        (x,), params = operands, binding.params
        return [
            lax.all_gather(
                x, params["axis_name"], axis=params["all_gather_dimension"], tiled=params["tiled"]
            )
        ]
    return bind_global(node, binding, operands)


# Ops that change which axes a value is said to vary over, and not the value.
_VARYING = ("pvary", "pcast", "reduced_vary_cast", "vary_unreduced_cast")
