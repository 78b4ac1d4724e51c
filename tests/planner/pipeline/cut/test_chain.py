"""Places at which a program may be cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from planner.pipeline.cut.chain import Chain, Slot

WORK = st.lists(st.floats(1.0, 9.0), min_size=4, max_size=7)


def chain_with(work: list[float], across: list[float]) -> Chain:
    slots = tuple(Slot("op", i, flops, ()) for i, flops in enumerate(work))
    return Chain(slots, (0.0, *across[: len(work) - 1], 0.0))


@given(WORK, st.floats(0.0, 0.5))
def test_places_keep_their_distance(work: list[float], reach: float):
    chain = chain_with(work, [1.0, 3.0, 2.0, 1.0, 2.0, 3.0])
    places = chain.places(reach)
    assert list(places) == sorted(places)
    assert all(
        chain.work[b] - chain.work[a] >= reach * sum(work) for a, b in itertools.pairwise(places)
    )
