from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import CollectiveModel, Group, bundles, combined_s, parse_cluster

sizes = st.lists(st.floats(1.0, 1e8), max_size=40)


@given(sizes, st.floats(1.0, 1e8), st.integers(1, 8))
def test_bundles_keep_order_bytes_and_limits(full: list[float], limit: float, at_most: int) -> None:
    found = bundles(full, at_most_bytes=limit, at_most=at_most)
    assert sum(found) == pytest.approx(sum(full))
    assert len(full) / at_most <= len(found) <= len(full)
    assert all(b <= limit or b in full for b in found)
    # two neighbours that would fit together are not left apart
    if at_most >= len(full):
        assert all(a + b > limit * (1 - 1e-9) for a, b in itertools.pairwise(found))


@given(sizes)
def test_combining_never_costs(full: list[float]) -> None:
    model, group = CollectiveModel(parse_cluster("8xh100")), Group(8, 8, 1)
    apart = sum(model.seconds("all-reduce", group, size) for size in full)
    assert combined_s(model, "all-reduce", group, full) <= apart * (1 + 1e-12)
    assert combined_s(model, "all-to-all", group, full) == pytest.approx(
        sum(model.seconds("all-to-all", group, size) for size in full)
    )


def test_many_small_gradients_pay_latency_once() -> None:
    model, group = CollectiveModel(parse_cluster("8xa100")), Group(8, 8, 1)
    single = model.seconds("all-reduce", group, 1e4)
    assert combined_s(model, "all-reduce", group, [1e4] * 200) < 20 * single
