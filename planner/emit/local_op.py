# pyright: basic
"""One operation on local shards: the primitive it was traced from, with local attributes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from ir import IRError, Mesh, Node, Sharding, Strategy, TensorType, lookup
from ir.trace import Binding

Array = Any


@dataclass(frozen=True)
class LocalOp:
    """An op, how it is split, and what it needs to run on one device.

    operands: types of the whole operands.
    count: runs in one call.
    """

    node: Node
    binding: Binding
    operands: tuple[TensorType, ...]
    strategy: Strategy
    mesh: Mesh
    count: float = 1.0

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
        params = dict(self.binding.params)
        local = lookup(self.node.op).local
        if local is not None and not self.is_whole:
            params |= local(self.local_operands, self.local_results, dict(self.node.attrs))
        return params

    def summed_axes(self) -> tuple[str, ...]:
        """Axes over which the first result is partial because a factor was split."""
        passed = {
            axis
            for axis, role in zip(self.mesh.names, self.strategy.roles, strict=True)
            if role.startswith("@")
        }
        partial = self.strategy.results[0].partial
        return tuple(axis for axis, _ in partial if axis not in passed)


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
