"""Seconds of a collective over a group of devices, and the bytes it puts on the wire."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from typing import Final, final, overload

import numpy as np
from numpy.typing import NDArray

from profiles import CollectiveKind, CollectiveTable

from .cluster import Cluster
from .fit import Curve, fit_curve
from .group import Group as Group
from .group import group_for as group_for
from .torus import Spans, spans_of, torus_seconds, torus_shape

Floats = NDArray[np.float64]
Sizes = tuple[tuple[int, Curve], ...]  # group size and its curve
Strides = dict[int, Sizes]

KINDS: Final[tuple[CollectiveKind, ...]] = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)

# What a collective costs before its first byte moves: NCCL src/graph/tuning.cc, base latency of
# the ring algorithm, LL protocol.
BASE_S: Final = 6.6e-6

# Share of a link's published bandwidth that a ring reaches. 8 H100 in OpenXLA's table gather
# 2 GiB at 402 GB/s, so 352 of 450 GB/s on the link.
LINK_EFFICIENCY: Final = 0.78

# On links without a table, of other makers too, the share is assumed to be the same.
# The same for networks between hosts; assumed, as no table spans hosts.
NETWORK_EFFICIENCY: Final = 0.9

# Share of a link's published bandwidth at which copy engines send to another device of the process,
# behind a switch. XLA sends bf16[512, 24576] in 100 us by them, and in 445 us by NCCL
# (openxla/xla, pull request 11182), that is 269 of the 450 GB/s of an H100 beside `BASE_S`; alone
# they reach 371 both ways (NVIDIA/nccl, issue 1264).
COPY_EFFICIENCY: Final = 0.6

# While a collective runs, compute beside it takes so much longer, as both want the same memory
# and processors. Galvatron's profile of 8 A100 (overlap_coefficient.json, Apache-2.0).
INTERFERENCE: Final = 1.1256


def wire_fraction(kind: CollectiveKind, n: int) -> float:
    """Bytes that each device sends, as a share of `full_bytes`, by the ring convention.

    All-gather, reduce-scatter and all-to-all (n-1)/n, all-reduce twice that, permute 1; nothing
    for a group of one.
    """
    if kind not in KINDS:
        raise ValueError(f"wire_fraction: kind must be one of {KINDS}, got {kind!r}")
    if n <= 1:
        return 0.0
    share = (n - 1) / n
    return {"all-reduce": 2.0 * share, "collective-permute": 1.0}.get(kind, share)


@overload
def wire_bytes(kind: CollectiveKind, n: int, full_bytes: float) -> float: ...
@overload
def wire_bytes(kind: CollectiveKind, n: int, full_bytes: Floats) -> Floats: ...
def wire_bytes(kind: CollectiveKind, n: int, full_bytes: float | Floats) -> float | Floats:
    """Bytes that each device sends in a collective; see `wire_fraction`."""
    return wire_fraction(kind, n) * full_bytes


@final
class CollectiveModel:
    """Prices collectives on one cluster; pure, and never falling in the number of bytes.

    Inside an island (a host, or a link domain that spans hosts) times come from the measured
    table of the device, else from latency and published bandwidth. A group that crosses islands
    pays the cheaper of two algorithms, the flat ring and the hierarchical one.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._curves = _curves(cluster.collectives) if cluster.collectives else {}
        self._link_s = cluster.intra_host.latency_s
        self._link_rate = cluster.intra_host.bandwidth_bytes_per_s * LINK_EFFICIENCY
        self._net_s = cluster.network.latency_s
        self._net_rate = cluster.network.bandwidth_bytes_per_s * NETWORK_EFFICIENCY
        shared = min(cluster.network.shared_by_devices, cluster.island)
        self._island_rate = self._net_rate * cluster.island / shared
        self.cluster: Final = cluster

    @overload
    def seconds(self, kind: CollectiveKind, group: Group, full_bytes: float) -> float: ...
    @overload
    def seconds(self, kind: CollectiveKind, group: Group, full_bytes: Floats) -> Floats: ...
    def seconds(
        self, kind: CollectiveKind, group: Group, full_bytes: float | Floats
    ) -> float | Floats:
        """Time of one collective, all groups of its kind running at once.

        Args:
            kind: one of `KINDS`.
            group: from `group_for`.
            full_bytes: the whole tensor over the group: output of an all-gather, input of a
                reduce-scatter; of an all-reduce, all-to-all or permute the operand of a device.

        Returns:
            Seconds, of the shape of `full_bytes`; 0 where there are no bytes or no peers.

        Raises:
            ValueError: if the kind is unknown or some bytes are negative or not numbers.
        """
        if kind not in KINDS:
            raise ValueError(f"CollectiveModel: kind must be one of {KINDS}, got {kind!r}")
        size = np.asarray(full_bytes, dtype=np.float64)
        if not np.all(size >= 0.0):
            raise ValueError(f"CollectiveModel: bytes must be at least 0, got {full_bytes}")
        if group.size == 1:
            found = np.zeros_like(size)
        elif group.hosts == 1:
            found = self._island(kind, group.size, size, group.stride, group.spans)
        else:
            found = self._crossing(kind, group, size)
        result = np.where(size > 0.0, found, 0.0)
        return float(result) if np.ndim(full_bytes) == 0 else result

    def within_host(self, group: Group) -> bool:
        """Whether a group lies on one host on fast links, whose GPUs one process has.

        Beyond, a permute waits for the slowest link of its ring, and no copy engine reaches the
        other host.
        """
        cluster = self.cluster
        alike = cluster.island <= cluster.devices_per_host
        return group.hosts == 1 and alike and not cluster.has_cpus

    def permute_s(self, group: Group, nbytes: Floats) -> Floats:
        """Seconds of a permute that an op runs itself: by copy engines where they reach.

        Args:
            group: the devices.
            nbytes: that each of them sends.
        """
        if self.within_host(group):
            return self.copy_s(group, nbytes)
        return self.seconds("collective-permute", group, nbytes)

    def copy_s(self, group: Group, nbytes: Floats) -> Floats:
        """Seconds of a permute within an island, by copy engines where the link is a switch.

        Compiled with `xla_gpu_use_memcpy_local_p2p`; copies are between devices of one process.

        Args:
            group: the devices, on one island.
            nbytes: that each of them sends.
        """
        found = np.asarray(self.seconds("collective-permute", group, nbytes))
        link = self.cluster.intra_host
        if link.torus_axes or link.mesh_devices > 1 or link.cube_devices > 1:
            return found
        rate = COPY_EFFICIENCY * link.bandwidth_bytes_per_s
        return np.minimum(found, np.where(nbytes > 0.0, BASE_S + nbytes / rate, 0.0))

    def _island(
        self, kind: CollectiveKind, n: int, size: Floats, stride: int = 1, spans: Spans = ()
    ) -> Floats:
        """Inside one island: measured if the device has a table of this kind, else by formula.

        Args:
            kind: of the collective.
            n: devices of a group.
            size: full bytes.
            stride: distance between neighbours.
            spans: how the group lies on a torus; that of the first `n` devices if empty.
        """
        if n == 1:
            return np.zeros_like(size)
        link = self.cluster.intra_host
        if link.torus_axes:
            shape = torus_shape(self.cluster.island, link.torus_axes)
            spans = spans or spans_of(shape, range(n))
            wire = wire_fraction(kind, n) * size
            return torus_seconds(kind, spans, shape, link, self._link_rate, size, wire)
        known = _nearest_stride(self._curves.get(kind), n, stride)
        return _between(known, kind, n, size) if known else self._published(kind, n, size)

    def _published(self, kind: CollectiveKind, n: int, size: Floats) -> Floats:
        """Latency and bandwidth of the link: ring, or for an all-reduce the tree if cheaper.

        In a full mesh every member sends to all others at once, over n - 1 of the wires to m - 1.
        Source: AMD, ROCm documentation of RCCL and of MI300X platforms: a wire between every two.

        Devices wired as a hypercube of m have their wires spread over its log2(m) dimensions, and
        a group of n uses those of log2(n).
        """
        if (mesh := self.cluster.intra_host.mesh_devices) > 1:
            return self._full_mesh(kind, n, size, self._link_rate / (mesh - 1))
        rate, cube = self._link_rate, self.cluster.intra_host.cube_devices
        if n < cube:
            rate *= math.log2(n) / math.log2(cube)
        moved = wire_fraction(kind, n) * size / rate
        return BASE_S + _cheaper_tree(kind, n, size, moved, self._link_s, rate)

    def _full_mesh(self, kind: CollectiveKind, n: int, size: Floats, wire_rate: float) -> Floats:
        """One step, of an all-reduce two: an equal part for each of the others over its own wire.

        latency + wire / ((n - 1) * rate of a wire); a permute has a single wire.
        """
        wires = 1 if kind == "collective-permute" else n - 1
        rounds = 2 if kind == "all-reduce" else 1
        moved = wire_fraction(kind, n) * size / (wires * wire_rate)
        return BASE_S + rounds * self._link_s + moved

    def _crossing(self, kind: CollectiveKind, group: Group, size: Floats) -> Floats:
        if kind == "collective-permute":
            return self._permute(group, size)
        # What one member gets of the network while all members of all groups use it.
        users = group.per_host * group.concurrent_per_host
        rate = min(self._net_rate, self._island_rate / users)
        if kind == "all-to-all":
            return self._all_to_all(group, size, rate)
        return np.minimum(
            self._flat_ring(kind, group, size, rate), self._hierarchical(kind, group, size, rate)
        )

    def _flat_ring(self, kind: CollectiveKind, group: Group, size: Floats, rate: float) -> Floats:
        """One ring per member of an island: the border and the inside work at the same time.

        rounds * (hosts * L_net + (n - hosts) * L_link) + max(wire / (per_host * rate), inside)
        """
        rounds = 2 if kind == "all-reduce" else 1
        inner_steps = group.size - group.hosts
        latency = rounds * (group.hosts * self._net_s + inner_steps * self._link_s)
        border = wire_fraction(kind, group.size) * size / (group.per_host * rate)
        return BASE_S + latency + np.maximum(border, self._island(kind, group.per_host, size))

    def _hierarchical(
        self, kind: CollectiveKind, group: Group, size: Floats, rate: float
    ) -> Floats:
        """Inside, then between islands on the shards, then inside again.

        all-reduce = reduce-scatter(per_host, V) + all-reduce(hosts, V / per_host)
        + all-gather(per_host, V); the other two leave out one of the inner steps.
        """
        shard = size / group.per_host
        moved = wire_fraction(kind, group.hosts) * shard / rate
        between = BASE_S + _cheaper_tree(kind, group.hosts, shard, moved, self._net_s, rate)
        if kind != "all-reduce":
            return between + self._island(kind, group.per_host, size)
        scatter = self._island("reduce-scatter", group.per_host, size)
        return scatter + between + self._island("all-gather", group.per_host, size)

    def _all_to_all(self, group: Group, size: Floats, rate: float) -> Floats:
        """Direct (every pair sends) or in two levels (first inside, then between islands)."""
        n, inside, hosts = group.size, group.per_host, group.hosts
        outward = (n - inside) / n * size / rate
        within = self._island("all-to-all", inside, size * inside / n)
        direct = BASE_S + (n - inside) * self._net_s + np.maximum(outward, within)
        between = BASE_S + (hosts - 1) * self._net_s + (hosts - 1) / hosts * size / rate
        return np.minimum(direct, self._island("all-to-all", inside, size) + between)

    def _permute(self, group: Group, size: Floats) -> Floats:
        """A shift by one: a single member of each island sends over the border."""
        rate = min(self._net_rate, self._island_rate / group.concurrent_per_host)
        border = BASE_S + self._net_s + size / rate
        return np.maximum(border, self._island("collective-permute", group.per_host, size))


def _cheaper_tree(
    kind: CollectiveKind, n: int, size: Floats, moved: Floats, latency_s: float, rate: float
) -> Floats:
    """Ring with its n-1 steps a pass; an all-reduce may be a tree of log2(n) steps instead."""
    if kind == "collective-permute":
        return latency_s + moved
    if kind != "all-reduce":
        return (n - 1) * latency_s + moved
    tree = 2 * math.ceil(math.log2(n)) * latency_s + 2.0 * size / rate
    return np.minimum(2 * (n - 1) * latency_s + moved, tree)


def _nearest_stride(known: Strides | None, n: int, stride: int) -> Sizes:
    """Curves of the widest measured stride up to the one asked for that cover groups of `n`."""
    if not known:
        return ()
    fitting = [s for s, sizes in known.items() if s <= stride and n <= sizes[-1][0]]
    return known[max(fitting, default=min(known))]


def _between(known: Sizes, kind: CollectiveKind, n: int, size: Floats) -> Floats:
    """Between two measured group sizes: straight in log n. Outside: equal bytes on the wire."""
    sizes = [measured for measured, _ in known]
    if n <= sizes[0] or n >= sizes[-1]:
        nearest, curve = known[0] if n <= sizes[0] else known[-1]
        return curve(size * (wire_fraction(kind, n) / wire_fraction(kind, nearest)))
    above = next(i for i, measured in enumerate(sizes) if measured >= n)
    (low, low_curve), (high, high_curve) = known[above - 1], known[above]
    weight = math.log(n / low) / math.log(high / low)
    floor = np.maximum(size, 1e-300)
    return np.exp((1.0 - weight) * np.log(low_curve(floor)) + weight * np.log(high_curve(floor)))


@functools.lru_cache(maxsize=32)
def _curves(table: CollectiveTable) -> dict[str, Strides]:
    """The fitted curve of every measured kind, stride and group size, the sizes in order."""
    points: dict[tuple[str, int, int], list[tuple[int, float]]] = defaultdict(list)
    for row in table.rows:
        points[row.kind, row.stride, row.group_size].append((row.full_bytes, row.seconds))
    curves: dict[str, Strides] = defaultdict(dict)
    for (kind, stride, group_size), series in sorted(points.items()):
        size, seconds = zip(*series, strict=True)
        fitted = (group_size, fit_curve(size, seconds))
        curves[kind][stride] = (*curves[kind].get(stride, ()), fitted)
    return dict(curves)
