from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.two_streams import Transfer, overlapped

seconds = st.floats(0.0, 10.0)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[float], list[Transfer]]:
    works = draw(st.lists(seconds, min_size=1, max_size=8))
    transfers: list[Transfer] = []
    for _ in range(draw(st.integers(0, 8))):
        ready = draw(st.integers(-1, len(works) - 1))
        needed = draw(st.integers(ready + 1, len(works)))
        early = draw(st.none() | st.integers(1, 4))
        transfers.append(Transfer(draw(seconds), ready, needed, early))
    return works, transfers


@given(steps(), st.floats(1.0, 2.0))
def test_a_step_lies_between_its_streams_and_their_sum(
    step: tuple[list[float], list[Transfer]], interference: float
) -> None:
    works, transfers = step
    found = overlapped(works, transfers, interference=interference)
    low = max(found.compute_s, found.communication_s)
    high = found.compute_s + found.communication_s
    assert low - 1e-9 <= found.step_s <= high + 1e-9
    assert overlapped(works, transfers, enabled=False).step_s == pytest.approx(high)
    assert found.step_s >= overlapped(works, transfers, interference=1.0).step_s - 1e-9


@given(steps())
def test_every_chain_of_waits_is_a_lower_bound(step: tuple[list[float], list[Transfer]]) -> None:
    works, transfers = step
    found = overlapped(works, transfers, interference=1.0)
    for t in transfers:
        chain = sum(works[: t.after + 1]) + t.seconds + sum(works[t.needed :])
        assert found.step_s >= chain - 1e-9


@given(steps(), st.integers(0, 7), seconds)
def test_a_slower_transfer_never_speeds_a_step_without_reordering(
    step: tuple[list[float], list[Transfer]], which: int, more: float
) -> None:
    works, transfers = step
    if which >= len(transfers):
        return
    t = transfers[which]
    slower = [*transfers]
    slower[which] = Transfer(t.seconds + more, t.ready, t.needed, t.early)
    before = overlapped(works, transfers, interference=1.0).step_s
    assert overlapped(works, slower, interference=1.0).step_s >= before - 1e-9


def test_a_gather_hides_behind_the_compute_there_is() -> None:
    free = overlapped([3.0, 3.0], [Transfer(2.0, -1, 1)], interference=1.0)
    assert free.step_s == pytest.approx(6.0)
    assert free.exposed_s == pytest.approx(0.0)
    late = overlapped([3.0, 3.0], [Transfer(5.0, -1, 1)], interference=1.0)
    assert late.step_s == pytest.approx(8.0)


def test_a_result_needed_at_once_hides_nothing() -> None:
    found = overlapped([3.0, 3.0], [Transfer(2.0, 0, 1)])
    assert found.step_s == pytest.approx(8.0)


def test_layers_of_fsdp_overlap_all_but_the_first_gather() -> None:
    layers = [Transfer(1.0, -1, i, early=1) for i in range(10)]
    found = overlapped([2.0] * 10, layers, interference=1.0)
    assert found.step_s == pytest.approx(21.0)


def test_interference_slows_what_runs_beside() -> None:
    found = overlapped([4.0], [Transfer(2.2, -1, 1)], interference=1.1)
    assert found.step_s == pytest.approx(2.2 + (4.0 - 2.2 / 1.1))


@pytest.mark.parametrize(("s", "ready", "needed"), [(-1.0, 0, 1), (1.0, 1, 1), (1.0, -2, 1)])
def test_bad_transfers(s: float, ready: int, needed: int) -> None:
    with pytest.raises(ValueError, match="Transfer"):
        Transfer(s, ready, needed)


def test_bad_steps() -> None:
    with pytest.raises(ValueError, match="beyond"):
        overlapped([1.0], [Transfer(1.0, 0, 5)])
    with pytest.raises(ValueError, match="interference"):
        overlapped([1.0], [], interference=0.5)
