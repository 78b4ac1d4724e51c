from __future__ import annotations

from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import KINDS, CollectiveModel, Group, group_for, parse_cluster, wire_bytes
from costmodel.collectives import LINK_EFFICIENCY
from profiles import CollectiveKind, load_profile

CLUSTERS = (
    "8xh100",
    "64xh100",
    "64xv100-16gb:8",
    "4xv100-pcie",
    "144xgb200",
    "8xb200",
    "16xa100",
    "8xhost",
)


@cache
def model(name: str) -> CollectiveModel:
    return CollectiveModel(parse_cluster(name))


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@st.composite
def groups(draw: st.DrawFn) -> tuple[str, Group]:
    name = draw(st.sampled_from(CLUSTERS))
    cluster = parse_cluster(name)
    outer = draw(st.sampled_from(divisors(cluster.num_devices)))
    inner = draw(st.sampled_from(divisors(cluster.num_devices // outer)))
    mesh = (outer, inner, cluster.num_devices // outer // inner)
    axes = draw(st.sets(st.sampled_from((0, 1, 2)), min_size=1))
    return name, group_for(cluster, mesh, tuple(axes))


@settings(max_examples=150, deadline=None)
@given(groups(), st.sampled_from(KINDS), st.floats(1, 1e12), st.floats(1, 1e3))
def test_more_bytes_never_take_less(
    where: tuple[str, Group], kind: CollectiveKind, size: float, factor: float
) -> None:
    name, group = where
    less = model(name).seconds(kind, group, size)
    more = model(name).seconds(kind, group, size * factor)
    assert 0.0 <= less <= more * (1 + 1e-12)
    assert (less > 0.0) == (group.size > 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CLUSTERS)
def test_arrays_and_numbers_agree(name: str, kind: CollectiveKind) -> None:
    cluster = parse_cluster(name)
    group = group_for(cluster, (cluster.num_devices,), (0,))
    sizes = np.array([[0.0, 1e3, 1e5], [1e7, 1e9, 1e11]])
    found = model(name).seconds(kind, group, sizes)
    assert found.shape == sizes.shape
    one = [model(name).seconds(kind, group, float(size)) for size in sizes.flat]
    np.testing.assert_array_equal(found.ravel(), one)
    assert found[0, 0] == 0.0


@pytest.mark.parametrize("device", ["h100", "b200", "gb200", "gb300"])
def test_large_measured_points_are_met(device: str) -> None:
    table = load_profile(device).collectives
    assert table is not None
    priced = CollectiveModel(parse_cluster(f"{load_profile(device).domain}x{device}"))
    errors = [
        abs(
            priced.seconds(
                r.kind, Group(r.group_size, r.group_size, 1, stride=r.stride), r.full_bytes
            )
            / r.seconds
            - 1
        )
        for r in table.rows
        if r.full_bytes >= 2**28
    ]
    assert np.median(errors) < 0.01
    # The source's permutes over NVLink 5 are slower at 256 MiB than at 288; a curve cannot be.
    assert max(errors) < 0.3


def test_group_sizes_between_measured_ones_lie_between() -> None:
    priced = model("144xgb200")
    low, middle, high = (priced.seconds("all-to-all", Group(n, n, 1), 1e9) for n in (8, 12, 16))
    assert low < middle < high


def test_past_the_table_the_last_slope_goes_on() -> None:
    group = Group(8, 8, 1)
    one, two = (model("8xh100").seconds("all-reduce", group, x) for x in (1e12, 2e12))
    assert two == pytest.approx(2 * one, rel=0.01)


def test_published_link_against_the_formula() -> None:
    group = Group(8, 8, 1)
    untimed = CollectiveModel(replace(parse_cluster("16xa100"), collectives=None))
    want = 7 / 8 * 1e10 / (300e9 * LINK_EFFICIENCY)
    assert untimed.seconds("all-gather", group, 1e10) == pytest.approx(want, rel=0.01)
    assert untimed.seconds("all-reduce", group, 1e10) == pytest.approx(2 * want, rel=0.01)


def test_link_efficiency_is_what_the_measured_h100_reaches() -> None:
    rate = 7 / 8 * 2**31 / model("8xh100").seconds("all-gather", Group(8, 8, 1), float(2**31))
    assert rate / 450e9 == pytest.approx(LINK_EFFICIENCY, rel=0.02)


def test_groups_that_share_a_network_divide_it() -> None:
    shared = model("64xv100-16gb:8")
    alone = shared.seconds("all-reduce", Group(8, 1, 8, 1), 1e9)
    crowd = shared.seconds("all-reduce", Group(8, 1, 8, 8), 1e9)
    assert crowd == pytest.approx(8 * alone, rel=0.01)
    own = model("64xh100")
    assert own.seconds("all-reduce", Group(8, 1, 8, 1), 1e9) == own.seconds(
        "all-reduce", Group(8, 1, 8, 8), 1e9
    )


def test_crossing_hosts_costs_no_less_than_staying() -> None:
    for kind in KINDS:
        stay = model("64xh100").seconds(kind, Group(8, 8, 1), 1e9)
        leave = model("64xh100").seconds(kind, Group(8, 1, 8, 8), 1e9)
        assert leave > stay


def test_the_network_bounds_an_all_reduce_over_hosts() -> None:
    seconds = model("64xh100").seconds("all-reduce", Group(64, 8, 8, 1), 1e10)
    assert seconds > 2 * 7 / 8 * 1e10 / (8 * 50e9)
    assert seconds < 2 * 1e10 / (8 * 50e9) * 2


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("all-gather", 75.0),
        ("reduce-scatter", 75.0),
        ("all-reduce", 150.0),
        ("all-to-all", 75.0),
        ("collective-permute", 100.0),
    ],
)
def test_wire_bytes(kind: CollectiveKind, want: float) -> None:
    assert wire_bytes(kind, 4, 100.0) == want
    assert wire_bytes(kind, 1, 100.0) == 0.0
    np.testing.assert_array_equal(wire_bytes(kind, 4, np.array([100.0, 0.0])), [want, 0.0])


def test_bad_input() -> None:
    group = Group(8, 8, 1)
    with pytest.raises(ValueError, match="kind must be one of"):
        model("8xh100").seconds("broadcast", group, 1.0)  # pyright: ignore
    with pytest.raises(ValueError, match="bytes must be at least 0"):
        model("8xh100").seconds("all-gather", group, -1.0)
    with pytest.raises(ValueError, match="bytes must be at least 0"):
        model("8xh100").seconds("all-gather", group, np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match="kind must be one of"):
        wire_bytes("gather", 2, 1.0)  # pyright: ignore


def test_members_that_lie_apart_are_priced_by_their_own_timings() -> None:
    priced = model("4xv100-pcie")
    near, apart = (priced.seconds("all-reduce", Group(2, 2, 1, stride=s), 1e8) for s in (1, 2))
    assert apart > 1.1 * near
    # nothing was measured for four members apart: those of four neighbours stand
    four = [priced.seconds("all-reduce", Group(4, 4, 1, stride=s), 1e8) for s in (1, 2)]
    assert four[0] == four[1]
    assert group_for(parse_cluster("4xv100-pcie"), (2, 2), (0,)).stride == 2
    assert group_for(parse_cluster("4xv100-pcie"), (2, 2), (1,)).stride == 1


def test_devices_without_a_switch_share_their_wires_by_dimension() -> None:
    priced = model("8xv100-16gb")
    eight = 7 / 8 * 1e10 / priced.seconds("all-gather", Group(8, 8, 1), 1e10)
    four = 3 / 4 * 1e10 / priced.seconds("all-gather", Group(4, 4, 1), 1e10)
    two = 1 / 2 * 1e10 / priced.seconds("all-gather", Group(2, 2, 1), 1e10)
    assert four / eight == pytest.approx(2 / 3, rel=0.01)
    assert two / eight == pytest.approx(1 / 3, rel=0.01)


def test_kinds_and_sizes_that_were_not_measured_have_a_price() -> None:
    whole = parse_cluster("8xh100")
    assert whole.collectives is not None
    rows = tuple(r for r in whole.collectives.rows if r.kind == "all-gather" and r.group_size == 2)
    for kept in ((), rows[:1], rows):
        table = msgspec.structs.replace(whole.collectives, rows=kept)
        priced = CollectiveModel(replace(whole, collectives=table))
        for kind in KINDS:
            assert 0.0 < priced.seconds(kind, Group(8, 8, 1), 1e6) < 1.0
