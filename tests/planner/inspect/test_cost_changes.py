"""What makes the difference between two plans adds up to the difference."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from planner.inspect.cost_changes import LEAST_SHARE, changes


@dataclass(frozen=True)
class Row:
    kind: str
    cause: str
    exposed_s: float


ROWS = st.lists(
    st.builds(
        Row, st.sampled_from(("all-gather", "all-reduce")), st.sampled_from("abc"),
        st.floats(0.0, 1.0),
    ),
    max_size=8,
)  # fmt: skip


@given(ROWS, ROWS, st.integers(1, 6))
def test_changes_are_the_largest_and_add_up(a: list[Row], b: list[Row], most: int) -> None:
    found = changes(a, b, most)
    every = changes(a, b, 100)
    assert found == every[:most]
    sizes = [abs(c.added_s) for c in every]
    assert sizes == sorted(sizes, reverse=True)
    total = sum(r.exposed_s for r in b) - sum(r.exposed_s for r in a)
    left_out = 6 * LEAST_SHARE * max(sizes, default=0.0)
    assert abs(sum(c.added_s for c in every) - total) <= left_out + 1e-9
    assert all(size > 0 for size in sizes)
    assert changes(a, a, most) == ()


def test_a_change_in_words() -> None:
    (change,) = changes([Row("all-gather", "w", 1.0)], [Row("all-gather", "w", 0.5)], 3)
    assert str(change) == "-500 ms all-gather for w"
