"""Shards of a tensor on the logical devices of a mesh, with NumPy: cut, reshard, join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from .errors import IRError
from .lowered import ReshardStep
from .mesh import Mesh
from .sharding import Sharding
from .types import Shape

Array = np.ndarray[Any, Any]
Shards = tuple[Array, ...]  # one for each device, in row-major order of the mesh

_REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class LogicalDevices:
    """The devices of a mesh."""

    mesh: Mesh

    @cached_property
    def numbers(self) -> Array:
        """Number of each device, by its coordinates."""
        return np.arange(self.mesh.num_devices).reshape(self.mesh.sizes)

    def rank(self, device: int, axes: tuple[str, ...]) -> int:
        """Index of a device along some axes, the first axis outermost."""
        at = dict(zip(self.mesh.names, np.unravel_index(device, self.mesh.sizes), strict=True))
        found = 0
        for axis in axes:
            found = found * self.mesh.size(axis) + int(at[axis])
        return found

    def group(self, device: int, axes: tuple[str, ...]) -> list[int]:
        """Devices that differ from one only along some axes, in order of their index."""
        at = np.unravel_index(device, self.mesh.sizes)
        names = self.mesh.names
        free = [slice(None) if axis in axes else k for axis, k in zip(names, at, strict=True)]
        members = np.asarray(self.numbers[tuple(free)]).ravel().tolist()
        return sorted(members, key=lambda member: self.rank(member, axes))

    def part(self, device: int, state: Sharding, shape: Shape) -> tuple[slice, ...]:
        """The part of a tensor that a device holds."""
        found: list[slice] = []
        for size, axes in zip(shape, state.dims, strict=True):
            local = size // self.mesh.product(axes)
            first = self.rank(device, axes) * local
            found.append(slice(first, first + local))
        return tuple(found)

    def cut(self, whole: Array, state: Sharding) -> Shards:
        """Cuts a value into shards; the first device holds a partial sum, the others zeros."""
        summed = tuple(axis for axis, kind in state.partial if kind == "sum")
        parts = [whole[self.part(d, state, whole.shape)] for d in range(self.mesh.num_devices)]
        return tuple(np.zeros_like(x) if self.rank(d, summed) else x for d, x in enumerate(parts))

    def join(self, shards: Shards, state: Sharding, shape: Shape) -> Array:
        """Joins shards into the value.

        Raises:
            IRError: if devices that hold the same part differ, or the value is partial.
        """
        if state.partial:
            raise IRError(f"{state} waits for a reduction")
        whole = np.empty(shape, shards[0].dtype)
        for d, shard in enumerate(shards):
            whole[self.part(d, state, shape)] = shard
        for d, shard in enumerate(shards):
            held = whole[self.part(d, state, shape)]
            if not np.array_equal(held, shard, equal_nan=shard.dtype.kind in "fc"):
                raise IRError(f"devices hold different values of one part of {state}")
        return whole

    def run(self, shards: Shards, step: ReshardStep) -> Shards:
        """Shards after one step of a change of state."""
        return tuple(self._step(d, shards, step) for d in range(self.mesh.num_devices))

    def _step(self, device: int, shards: Shards, step: ReshardStep) -> Array:
        x, axes = shards[device], step.axes
        members = self.group(device, axes)
        if step.kind == "mask":
            return x if self.rank(device, axes) == 0 else np.zeros_like(x)
        if step.kind in ("all-reduce", "reduce-scatter"):
            x = reduce(_REDUCE[step.reduction], [shards[m] for m in members]).astype(x.dtype)
        elif step.kind in ("all-gather", "all-to-all"):
            x = np.concatenate([shards[m] for m in members], step.dim)
        elif step.kind == "collective-permute":
            return shards[self._holder(device, step)]
        if step.kind in ("slice", "reduce-scatter", "all-to-all"):
            x = self._block(device, x, step.to_dim, axes)
        return x

    def _block(self, device: int, x: Array, dim: int, axes: tuple[str, ...]) -> Array:
        size = x.shape[dim] // self.mesh.product(axes)
        first = self.rank(device, axes) * size
        return x[(slice(None),) * dim + (slice(first, first + size),)]

    def _holder(self, device: int, step: ReshardStep) -> int:
        """The source device of a shard when the axes of a dimension change order."""
        wanted = self.rank(device, step.after.dims[step.dim])
        before = step.before.dims[step.dim]
        members: Sequence[int] = self.group(device, before)
        return next(member for member in members if self.rank(member, before) == wanted)
