# pyright: basic
"""One operation on local shards: the primitive it was traced from, with local attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import PartitionSpec

from ir import (
    OF_RESULTS,
    IRError,
    Literal,
    Mesh,
    Node,
    Sharding,
    TensorType,
    lookup,
    passing_groups,
)
from ir.trace import Binding

from ..menu import Strategy, strategy_of
from .high_words import multiply_high

Array = Any

# Placement hints of the user's program; the plan places every value itself.
PLACEMENT = ("device_put", "mesh_cast", "reshard", "sharding_constraint")


@dataclass(frozen=True)
class LocalOp:
    """An op, how it is split, and what it needs to run on one device."""

    node: Node
    binding: Binding
    operands: tuple[TensorType, ...]  # types of the whole operands
    strategy: Strategy
    mesh: Mesh

    @property
    def is_whole(self) -> bool:
        """Whether every device runs the whole op."""
        return not any(self.strategy.roles)

    @property
    def local_operands(self) -> tuple[TensorType, ...]:
        return self._local(self.operands, self.strategy.operands)

    @property
    def local_results(self) -> tuple[TensorType, ...]:
        return self._local(self.node.outputs, self.strategy.results)

    def _local(
        self, types: tuple[TensorType, ...], states: tuple[Sharding, ...]
    ) -> tuple[TensorType, ...]:
        return tuple(
            TensorType(state.local_shape(type_.shape, self.mesh), type_.dtype)
            for type_, state in zip(types, states, strict=True)
        )

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the primitive for the local shards."""
        params = without_places(self.binding.params)
        local = lookup(self.node.op).local
        if local is not None and not self.is_whole:
            params |= local(self.local_operands, self.local_results, dict(self.node.attrs))
        return params

    def summed_axes(self, result: int = 0) -> tuple[str, ...]:
        """Axes over which a result is partial because a factor was split."""
        passed = {
            axis
            for axis, role in zip(self.mesh.names, self.strategy.roles, strict=True)
            if role.startswith("@")
        }
        partial = self.strategy.results[result].partial
        return tuple(axis for axis, _ in partial if axis not in passed)


def local_op(
    node: Node,
    binding: Binding,
    operands: tuple[TensorType, ...],
    roles: tuple[str, ...],
    mesh: Mesh,
) -> LocalOp:
    """The op split as the roles of the mesh axes say.

    Raises:
        IRError: if they are not legal for it.
    """
    spec = lookup(node.op).factors(operands, node.outputs, dict(node.attrs))
    groups = passing_groups(node, operands)
    return LocalOp(node, binding, operands, strategy_of(spec, mesh, roles, groups), mesh)


def bind(binding: Binding, operands: Sequence[Array], params: Mapping[str, Any]) -> list[Array]:
    """Runs a primitive; the results are always a list."""
    if binding.primitive.name == "mulhi":
        return [multiply_high(*operands)]
    primitive = binding.primitive
    if primitive.name == "fft":  # XLA for CPU runs it in row-major order and does not ask for that
        (x,) = operands
        return [_row_major(primitive.bind(_row_major(x), **params))]
    found = primitive.bind(*operands, **params)
    return list(found) if primitive.multiple_results else [found]


def _row_major(x: Array) -> Array:
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def bind_global(node: Node, binding: Binding, operands: Sequence[Array]) -> list[Array]:
    """Runs a node with the parameters it was traced with, but for the user's placement."""
    if node.op in PLACEMENT:
        return list(operands)
    return bind(binding, operands, without_places(binding.params))


def without_places(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a primitive that do not say how its result is sharded."""
    return {key: None if key in OF_RESULTS else value for key, value in params.items()}


def literal(operand: Literal) -> Array:
    """A literal as an array of rank 0."""
    return np.asarray(operand.value).astype(jnp.dtype(operand.type.dtype))


def shift(op: LocalOp, state: Sharding, dim: int, size: int) -> Array:
    """Number of the first element of this device's shard along a dimension of `size`."""
    axes = state.dims[dim]
    if not axes:
        return np.int32(0)
    return lax.axis_index(axes) * np.int32(size // op.mesh.product(axes))


def partition_spec(sharding: Sharding) -> PartitionSpec:
    """The sharding as JAX writes it; what is partial has no place in it.

    Raises:
        IRError: if the value is partial.
    """
    if sharding.partial:
        raise IRError(f"{sharding} waits for a reduction, which a PartitionSpec cannot say")
    entries = (axes[0] if len(axes) == 1 else axes or None for axes in sharding.dims)
    return PartitionSpec(*entries)
