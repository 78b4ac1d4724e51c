"""The shard of an array on each device, as index ranges, and what moves between two shardings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ir import Mesh, Shape, Sharding

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class DeviceShards:
    """Device d holds the entries from `low[d]` to below `high[d]` in each dimension.

    low, high: index ranges, [devices, dimensions]. A device with an empty range holds nothing.
    """

    low: Ints
    high: Ints

    @property
    def entries(self) -> Ints:
        """Entries that each device holds."""
        return np.maximum(self.high - self.low, 0).prod(axis=1, dtype=np.int64)

    def on(self, devices: Ints) -> DeviceShards:
        """The shards of some devices in that order; -1 stands for a device that holds nothing."""
        low, high = self.low[devices], self.high[devices].copy()
        high[devices < 0] = low[devices < 0]
        # an array without dimensions has one entry wherever it is, but for these
        return _with_mark(low, high, devices >= 0)

    def shared(self, other: DeviceShards) -> Ints:
        """Entries that each device holds in both."""
        low, high = np.maximum(self.low, other.low), np.minimum(self.high, other.high)
        return DeviceShards(low, high).entries


def _with_mark(low: Ints, high: Ints, held: NDArray[np.bool_]) -> DeviceShards:
    """Shards with one more dimension of size 1, which is empty where nothing is held."""
    ones = held.astype(np.int64)[:, None]
    return DeviceShards(np.hstack([low, np.zeros_like(ones)]), np.hstack([high, ones]))


def device_shards_of(state: Sharding, shape: Shape, mesh: Mesh) -> DeviceShards:
    """The shard of an array on each device of a mesh.

    Args:
        state: sharding without partial axes, whose sizes divide the shape.
        shape: shape of the array.
        mesh: mesh whose devices are numbered in row-major order.
    """
    count = mesh.num_devices
    place = dict(zip(mesh.names, np.unravel_index(np.arange(count), mesh.sizes), strict=True))
    low, high = np.zeros((2, count, len(shape)), dtype=np.int64)
    for d, (size, axes) in enumerate(zip(shape, state.dims, strict=True)):
        index = np.zeros(count, dtype=np.int64)
        for axis in axes:
            index = index * mesh.size(axis) + place[axis]
        part = size // mesh.product(axes)
        low[:, d], high[:, d] = index * part, (index + 1) * part
    return DeviceShards(low, high)


def received(before: DeviceShards, after: DeviceShards) -> Ints:
    """Entries that each device has to receive; both shards are on the same devices."""
    return after.entries - before.shared(after)


def lost(before: DeviceShards, kept: Ints) -> int:
    """Number of entries of an array that no remaining device holds.

    Args:
        before: shards of one sharding, pairwise equal or disjoint.
        kept: indices of the remaining devices.
    """
    pairs = np.hstack([before.low, before.high])
    every = {tuple(row) for row in pairs.tolist()}
    left = {tuple(row) for row in pairs[kept].tolist()}
    rank = before.low.shape[1]
    return sum(
        int(np.prod(np.array(row[rank:]) - np.array(row[:rank]), dtype=np.int64))
        for row in every - left
    )
