"""What repeats in a list of labels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.inspect.report.layer import longest_run


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.integers(2, 6),
    st.lists(st.integers(10, 19), max_size=4, unique=True),
    st.lists(st.integers(20, 29), max_size=4, unique=True),
)
def test_repeats_are_found(block: list[int], times: int, head: list[int], tail: list[int]) -> None:
    labels = [*head, *block * times, *tail]
    start, period, length = longest_run(labels)
    assert all(labels[i] == labels[i + period] for i in range(start, start + length - period))
    assert start >= len(head)
    assert length >= 2 * period
    assert 2 * length >= len(block) * times


@given(st.lists(st.integers(), unique=True, max_size=12))
def test_nothing_repeats(labels: list[int]) -> None:
    assert longest_run(labels)[2] == 0
