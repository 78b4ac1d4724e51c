# pyright: basic
"""Collectives on a torus and in a full mesh, against the load of every link and published sums."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import networkx as nx
import numpy as np
import pytest

from costmodel import CollectiveModel, group_for, parse_cluster, wire_bytes
from costmodel.collectives import BASE_S, LINK_EFFICIENCY
from costmodel.torus import spans_of, torus_shape
from profiles import ProfileError, convert, load_profile, profile_names
from profiles.schema import Link

BIG = 1e12  # bytes, beside which latency is nothing


def network(sides: tuple[int, ...], *, ring: bool) -> nx.DiGraph:
    return nx.grid_graph(sides[::-1], periodic=ring).to_directed()


def in_order(way: list[tuple[int, ...]]) -> bool:
    """Whether a way follows the first axis, then the second, and so on."""
    turns = [
        next(k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        for a, b in itertools.pairwise(way)
    ]
    return turns == sorted(turns)


def most_loaded(graph: nx.DiGraph) -> float:
    """Load of the busiest link if every device sends one byte to every other, axis after axis."""
    load: dict[object, float] = defaultdict(float)
    for a, b in itertools.permutations(graph.nodes, 2):
        ways = [way for way in nx.all_shortest_paths(graph, a, b) if in_order(way)]
        for way in ways:
            for link in itertools.pairwise(way):
                load[link] += 1 / len(ways)
    return max(load.values())


@pytest.mark.parametrize(("devices", "axes", "want"), [
    (1, 2, (1, 1)), (4, 2, (2, 2)), (8, 2, (2, 4)), (32, 2, (4, 8)), (128, 2, (8, 16)),
    (256, 2, (16, 16)), (4, 3, (1, 2, 2)), (32, 3, (2, 4, 4)), (128, 3, (4, 4, 8)),
    (6144, 3, (16, 16, 24)),
])  # fmt: skip
def test_slices_have_the_shapes_that_are_offered(
    devices: int, axes: int, want: tuple[int, ...]
) -> None:
    assert torus_shape(devices, axes) == want


def test_how_groups_lie() -> None:
    assert spans_of((4, 4), range(4)) == ((1, 1), (4, 1))
    assert spans_of((4, 4), [0, 4, 8, 12]) == ((4, 1), (1, 1))
    assert spans_of((4, 4), [0, 2, 8, 10]) == ((2, 2), (2, 2))
    assert spans_of((4, 4), range(16)) == ((4, 1), (4, 1))
    assert spans_of((2, 3), range(4)) == ((4, 1), (1, 1))  # no grid


def seconds(name: str, mesh: tuple[int, ...], axes: tuple[int, ...], kind: str) -> float:
    cluster = parse_cluster(name)
    model = CollectiveModel(cluster)
    return model.seconds(kind, group_for(cluster, mesh, axes), BIG)  # pyright: ignore


def wire_rate(name: str) -> float:
    """Bytes over one link and direction in a second."""
    link = load_profile(name).intra_host
    return link.bandwidth_bytes_per_s * LINK_EFFICIENCY / (2 * link.torus_axes)


@pytest.mark.parametrize(
    ("name", "sides", "ring"),
    [("tpu-v5p", (4, 4, 4), True), ("tpu-v5e", (2, 4), False), ("tpu-v5e", (4, 4), False)],
)
def test_an_all_to_all_takes_as_long_as_its_busiest_link(
    name: str, sides: tuple[int, ...], *, ring: bool
) -> None:
    n = math.prod(sides)
    load = most_loaded(network(sides, ring=ring)) * BIG / n
    found = seconds(f"{n}x{name}", (n,), (0,), "all-to-all")
    assert found == pytest.approx(load / wire_rate(name), rel=1e-3)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce"])
def test_a_ring_sends_both_ways_and_a_line_reaches_its_end_over_one_link(kind: str) -> None:
    whole = wire_bytes(kind, 16, BIG) / wire_rate("tpu-v5e")  # pyright: ignore
    assert seconds("256xtpu-v5e", (16, 16), (1,), kind) == pytest.approx(whole / 2, rel=1e-3)
    assert seconds("256xtpu-v5e", (16, 16), (0,), kind) == pytest.approx(whole / 2, rel=1e-3)
    half = wire_bytes(kind, 8, BIG) / wire_rate("tpu-v5e")  # pyright: ignore
    assert seconds("256xtpu-v5e", (16, 2, 8), (2,), kind) == pytest.approx(half, rel=1e-3)
    # Every other device: two groups share each link of a ring.
    assert seconds("256xtpu-v5e", (16, 8, 2), (1,), kind) == pytest.approx(half, rel=1e-3)
    # No device takes in more than its links carry: the bound of any algorithm.
    for mesh, axes in (((16, 16), (0, 1)), ((16, 16), (0,)), ((4, 4, 16), (0, 1))):
        n = math.prod(mesh[axis] for axis in axes)
        least = wire_bytes(kind, n, BIG) / (4 * wire_rate("tpu-v5e"))  # pyright: ignore
        assert seconds("256xtpu-v5e", mesh, axes, kind) >= least


def test_the_all_reduce_of_a_pod_has_the_published_bandwidth() -> None:
    """Google: 51.2 TB/s of a v5e pod, 102.4 TB/s of a v6e pod, without losses."""
    for name, published in (("tpu-v5e", 51.2e12), ("tpu-v6e", 102.4e12)):
        found = seconds(f"256x{name}", (16, 16), (0, 1), "all-reduce")
        sent = wire_bytes("all-reduce", 256, BIG) * 256
        assert sent / found / LINK_EFFICIENCY == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_full_mesh_uses_the_wires_between_its_members_at_once(n: int) -> None:
    wire = 64e9 * LINK_EFFICIENCY  # AMD: 128 GB/s in both directions
    mesh = (8 // n, n)
    for kind, carried in (("all-gather", BIG / n), ("all-to-all", BIG / n),
                          ("reduce-scatter", BIG / n), ("all-reduce", 2 * BIG / n),
                          ("collective-permute", BIG)):  # fmt: skip
        found = seconds("8xmi300x", mesh, (1,), kind)
        assert found == pytest.approx(carried / wire, rel=1e-3)


def test_times_never_fall_in_bytes_and_cross_slices() -> None:
    cluster = parse_cluster("512xtpu-v5e")
    model, sizes = CollectiveModel(cluster), np.geomspace(1, 1e10, 40)
    for axes in ((0,), (1,), (0, 1)):
        group = group_for(cluster, (2, 256), axes)
        for kind in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
            found = model.seconds(kind, group, sizes)
            assert np.all(np.diff(found) >= 0)
            assert np.all(found > 0)
    small = CollectiveModel(parse_cluster("8xmi300x"))
    assert small.seconds("all-gather", group_for(small.cluster, (8,), (0,)), 1.0) >= BASE_S


@pytest.mark.parametrize("change", [
    {"torus_axes": 2, "mesh_devices": 8}, {"cube_devices": 8, "torus_axes": 2}, {"ring_from": 4},
    {"torus_axes": 7}, {"mesh_devices": 0},
])  # fmt: skip
def test_devices_are_wired_in_one_way(change: dict[str, int]) -> None:
    raw = {"name": "a", "latency_s": 1e-6, "bandwidth_bytes_per_s": 1e11, "source": "s",
           "date": "2025"}  # fmt: skip
    with pytest.raises(ProfileError):
        convert(raw | change, Link, where="link")


def test_wires_of_profiles_are_whole() -> None:
    for name in profile_names():
        profile = load_profile(name)
        link = profile.intra_host
        assert link.mesh_devices in (1, profile.domain)
        assert not profile.network.torus_axes
