"""Seconds of a plan, shared out among slots of its program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.pipeline.divide.cost_profile import passing, spent_at

# operations of products and seconds of each slot; two in three slots have no product
SLOTS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 1.0, 5.0]), st.floats(0.1, 9.0)), min_size=1, max_size=20
)


@given(SLOTS, st.data())
def test_what_is_shared_out_is_all_there_is(slots: list[tuple[float, float]], data: st.DataObject):
    parts = [data.draw(st.integers(1, 3)) for _ in slots]
    blocks = [
        (flops / n, seconds / n) for (flops, seconds), n in zip(slots, parts, strict=True)
        for _ in range(n)
    ]  # fmt: skip
    spent = spent_at(passing(blocks), [f for f, _ in slots], [s for _, s in slots])
    assert spent[0] == 0.0
    assert np.all(np.diff(spent) >= -1e-12)
    assert spent[-1] == pytest.approx(sum(s for _, s in slots))


@given(SLOTS)
def test_slots_with_products_and_their_followers_get_what_they_take(
    slots: list[tuple[float, float]],
):
    """Between a product and the next, and before the first, seconds are exact."""
    products, seconds = [f for f, _ in slots], [s for _, s in slots]
    spent = spent_at(passing(slots), products, seconds)
    exact = np.append(0.0, np.cumsum(seconds))
    heavy = [k for k, f in enumerate(products) if f > 0]
    for k in heavy or range(len(slots)):
        assert spent[k] == pytest.approx(exact[k])
    if heavy:  # after the last product, as the roofline says
        np.testing.assert_allclose(spent[heavy[-1] + 1 :], exact[heavy[-1] + 1 :])
