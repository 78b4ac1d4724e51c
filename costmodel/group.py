"""How the devices of one collective lie on the hosts of a cluster."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster
from .torus import Spans, spans_of, torus_shape


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of one collective as they lie on islands (hosts, or wider link domains).

    Attributes:
        size: devices in the group, `per_host * hosts`.
        per_host: members on each island that the group touches.
        hosts: islands that the group touches.
        concurrent_per_host: groups that cross the borders of one island at the same time, and so
            divide its network; 1 for a group that stays inside.
        stride: distance between neighbours of the group in the order of devices.
        spans: how the group lies on a torus, if it stays on one; see `costmodel.torus`.
    """

    size: int
    per_host: int
    hosts: int
    concurrent_per_host: int = 1
    stride: int = 1
    spans: Spans = ()

    def __post_init__(self) -> None:
        counts = (self.size, self.per_host, self.hosts, self.concurrent_per_host, self.stride)
        if min(counts) < 1:
            raise ValueError(f"every field of a Group must be at least 1, found {self}")
        if self.size != self.per_host * self.hosts:
            raise ValueError(f"Group: size must be per_host * hosts, found {self}")


def group_for(cluster: Cluster, mesh_sizes: tuple[int, ...], axes: tuple[int, ...]) -> Group:
    """The groups of a collective over `axes` of a row-major mesh whose axis 0 is outermost.

    Where groups lie differently on the islands (an axis of 6 on hosts of 8), the one with the
    fewest members together is returned, which is the slowest.

    Raises:
        ValueError: if the mesh has not as many devices as the cluster, or an axis is not of it.
    """
    island = cluster.island
    if int(np.prod(mesh_sizes, dtype=np.int64)) != cluster.num_devices:
        raise ValueError(
            f"group_for: mesh {mesh_sizes} does not have the {cluster.num_devices} devices of "
            f"{cluster.name}"
        )
    if not all(0 <= axis < len(mesh_sizes) for axis in axes) or len(set(axes)) != len(axes):
        raise ValueError(f"group_for: axes {axes} are not distinct axes of mesh {mesh_sizes}")
    found = _group(island, mesh_sizes, tuple(sorted(axes)))
    torus = cluster.intra_host.torus_axes
    if not torus or found.hosts > 1 or found.size == 1:
        return found
    members = _members(mesh_sizes, tuple(sorted(axes)))[0] % island
    return replace(found, spans=spans_of(torus_shape(island, torus), members.tolist()))


def _members(mesh_sizes: tuple[int, ...], axes: tuple[int, ...]) -> NDArray[np.int64]:
    """Devices of each group, one group in a row."""
    rest = tuple(axis for axis in range(len(mesh_sizes)) if axis not in axes)
    size = int(np.prod([mesh_sizes[axis] for axis in axes], dtype=np.int64))
    count = int(np.prod(mesh_sizes, dtype=np.int64))
    return np.arange(count).reshape(mesh_sizes).transpose(rest + axes).reshape(-1, size)


@functools.lru_cache(maxsize=4096)
def _group(island: int, mesh_sizes: tuple[int, ...], axes: tuple[int, ...]) -> Group:
    order = _members(mesh_sizes, axes)
    table, size = order // island, order.shape[1]
    members = [np.unique(row, return_counts=True) for row in table]
    fewest = min(int(counts.min()) for _, counts in members)
    stride = int(order[0, 1] - order[0, 0]) if size > 1 else 1
    if all(len(touched) == 1 for touched, _ in members):
        return Group(size, size, 1, stride=stride)
    per_host = max(d for d in range(1, fewest + 1) if size % d == 0)
    crossing = [touched for touched, _ in members if len(touched) > 1]
    _, groups_on_host = np.unique(np.concatenate(crossing), return_counts=True)
    return Group(size, per_host, size // per_host, int(groups_on_host.max()), stride)
