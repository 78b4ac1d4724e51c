# pyright: basic
"""Ops that users registered on local shards: functions as they are, calls of libraries resized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ir import IRError, TensorType
from ir.evaluate import bind

from .local_op import LocalOp, partition_spec

Array = Any


def registered(op: LocalOp, operands: Sequence[Array]) -> list[Array]:
    """Runs a registered op on local shards.

    Raises:
        IRError: if its results there do not have the shapes that its factors say.
    """
    params, expected = dict(op.binding.params), op.local_results
    if "partition" in params and not op.is_whole:  # of `custom_partitioning`
        results = _partitioned(op)(operands)
    else:
        if "result_avals" in params:  # a call of a library, which does not know its results' shapes
            known = zip(params["result_avals"], expected, strict=True)
            params["result_avals"] = tuple(aval.update(shape=type_.shape) for aval, type_ in known)
        results = bind(op.binding, operands, params)
    for k, (x, type_) in enumerate(zip(results, expected, strict=True)):
        if tuple(x.shape) != type_.shape:
            raise IRError(
                f"on shards {_list(op.local_operands)} its result {k} has the shape {x.shape}, "
                f"its factors '{op.node.attr('factors')}' say {type_.shape}",
                where=f"op '{op.node.attr('name')}'",
                remedy="take sizes from the operands inside the function, or mark the factor with "
                "! if it cannot be split",
            )  # fmt: skip
    return results


def _partitioned(op: LocalOp) -> Callable[[Sequence[Array]], list[Array]]:
    """What the `partition` of a `custom_partitioning` function returns for the op's shardings.

    Raises:
        IRError: if it asks for other shardings than its rule allows.
    """
    params, mesh = op.binding.params, AbstractMesh(op.mesh.sizes, op.mesh.names)
    sides = (
        (params["in_tree"], op.operands, op.strategy.operands),
        (params["out_tree"], op.node.outputs, op.strategy.results),
    )
    given: list[list[jax.ShapeDtypeStruct]] = [
        [
            jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=NamedSharding(mesh, partition_spec(s)))
            for t, s in zip(types, states, strict=True)
        ]
        for _, types, states in sides
    ]
    trees = (tree.unflatten(structs) for (tree, *_), structs in zip(sides, given, strict=True))
    _, lower, of_results, of_operands = params["partition"](*params["static_args"], mesh, *trees)
    for (tree, _, states), asked in zip(sides, (of_operands, of_results), strict=True):
        leaves = tree.flatten_up_to(asked)
        for state, sharding in zip(states, leaves, strict=True):
            if _dims(sharding.spec, len(state.dims)) != state.dims:
                raise IRError(
                    f"for the factors '{op.node.attr('factors')}' its partition asks for "
                    f"{sharding.spec} where its sharding rule allows {partition_spec(state)}",
                    where=f"op '{op.node.attr('name')}'",
                    remedy="mark what it needs whole in need_replication_factors of its rule",
                )  # fmt: skip
    in_tree = params["in_tree"]
    return lambda operands: jax.tree.leaves(lower(*in_tree.unflatten(operands)))


def _dims(spec: PartitionSpec, rank: int) -> tuple[tuple[str, ...], ...]:
    """The mesh axes of each dimension."""
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return (*entries, *[()] * (rank - len(entries)))


def _list(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))
