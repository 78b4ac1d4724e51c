"""The schedule search: sound patterns, proved bounds, memory kept."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.schedule_search import find_schedule
from benchmarks.schedule_search.flows import placed
from benchmarks.schedule_search.modulo import modulo_patterns
from benchmarks.schedule_search.pattern import Pattern
from benchmarks.schedule_search.periodic import shortest_period
from planner import PlanError
from planner.common.stop import Stop
from planner.pipeline.schedule import (
    Links,
    StageCosts,
    bidirectional,
    build,
    chain,
    looped,
    simulate,
    uniform,
    v_shape,
)
from planner.pipeline.schedule.round import Round, round_of
from tests.planner.pipeline.schedule.problems import random_problem


def is_sound(pattern: Pattern) -> bool:
    try:
        assert_sound(pattern)
    except AssertionError:
        return False
    return True


def assert_sound(pattern: Pattern) -> None:
    """Needs are met, and no two blocks of a device overlap modulo the period."""
    r, p = pattern.round, pattern.period_s
    offset = pattern.offset_s
    for before, after, gap in r.needs:
        assert offset[after] >= offset[before] + r.blocks[before].seconds + gap - 1e-6 * p
    for device in range(r.placement.devices):
        mine = [(o % p, b.seconds) for o, b in zip(offset, r.blocks, strict=True)
                if b.device == device and b.seconds > 0]  # fmt: skip
        mine.sort()
        if not mine:
            continue
        for (start, length), (following, _) in zip(mine, [*mine[1:], mine[0]], strict=True):
            gap = following - start if len(mine) > 1 else p
            gap = gap if gap > 1e-6 * p or len(mine) == 1 else gap + p
            assert gap >= length - 1e-6 * p


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**31), split=st.booleans())
def test_what_is_found_fits_and_is_bounded(seed: int, split: bool) -> None:
    placement, costs, microbatches = random_problem(seed)
    rng = np.random.default_rng(seed + 1)
    least = [0.0] * placement.devices
    for chunk, stage in enumerate(placement.stage):
        least[placement.device[chunk]] += costs.activation_bytes[stage] + costs.weight_bytes[stage]
    memory = [b * float(rng.uniform(1.0, 4.0)) for b in least] if seed % 3 else []
    found = find_schedule(
        placement, microbatches, costs, memory_bytes=memory, split=split, time_limit_s=0.2
    )
    again = simulate(found.schedule, costs)
    assert again.step_s == found.step_s >= found.lower_bound_s * (1 - 1e-9)
    assert found.period_s >= found.period_bound_s * (1 - 1e-6)
    for peak, limit in zip(again.peak_bytes, memory, strict=False):
        assert peak <= limit * (1 + 1e-6)
    work = np.array(costs.forward_s) + np.array(costs.backward_s)
    load = np.zeros(placement.devices)
    np.add.at(load, list(placement.device), work)
    assert found.lower_bound_s >= microbatches * load.max() * (1 - 1e-9)
    assert found.step_s <= microbatches * work.sum() * (1 + 1e-9)  # never worse than one by one


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), split=st.booleans(), factor=st.sampled_from([1.0, 1.1, 1.5]))
def test_patterns_are_sound(seed: int, split: bool, factor: float) -> None:
    placement, costs, microbatches = random_problem(seed)
    r = round_of(placement, costs, split=split, links=None, memory_bytes=())
    patterns = modulo_patterns(r, factor * max(r.load_s), tries=6, seed=seed)
    for pattern in patterns:
        assert_sound(pattern)
        timeline = simulate(pattern.schedule(microbatches), costs)
        assert timeline.step_s <= pattern.step_s(microbatches) * (1 + 1e-9)
        fixed = [0.0] * placement.devices
        for chunk, stage in enumerate(placement.stage):
            fixed[placement.device[chunk]] += costs.weight_bytes[stage]
        for peak, held, base in zip(timeline.peak_bytes, pattern.held_bytes(), fixed, strict=True):
            assert peak <= base + held + 1e-6


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_the_programme_is_sound_and_no_pattern_beats_its_bound(seed: int) -> None:
    placement, costs, _ = random_problem(seed)
    whole = np.zeros(placement.devices)
    np.add.at(whole, list(placement.device), np.array(costs.activation_bytes))
    fixed = np.zeros(placement.devices)
    np.add.at(fixed, list(placement.device), np.array(costs.weight_bytes))
    memory = (whole * 1.5 + fixed).tolist()
    r = round_of(placement, costs, split=False, links=None, memory_bytes=memory)
    exact = shortest_period(r, time_limit_s=1.0)
    if exact.pattern is not None:
        assert_sound(exact.pattern)
        assert exact.pattern.excess_bytes() <= 1e-6 * whole.max()
        assert exact.pattern.period_s >= exact.lower_bound_s * (1 - 1e-6)
    for factor in (1.0, 1.2, 1.5, 2.0):
        for pattern in modulo_patterns(r, factor * max(r.load_s), tries=8, seed=seed):
            if pattern.excess_bytes() <= 0:
                assert pattern.period_s >= exact.lower_bound_s * (1 - 1e-6)


def least_whole_period(r: Round) -> int:
    """The least period in whole seconds, by trying every delay of every block up to a period."""
    period = int(np.ceil(r.least_period_s))
    while True:
        for delays in product(range(period), repeat=len(r.blocks) - 1):
            offset = [0.0] * len(r.blocks)
            for b, delay in zip(r.order, (0, *delays), strict=True):
                ready = [offset[a] + r.blocks[a].seconds + gap for a, gap in r.sources[b]]
                offset[b] = max(ready, default=0.0) + delay
            pattern = Pattern(r, float(period), tuple(offset))
            if pattern.excess_bytes() <= 0 and is_sound(pattern):
                return period
        period += 1


@pytest.mark.parametrize("held", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("device", [(0, 1), (0, 0)])
def test_the_programme_is_no_worse_than_trying_everything(
    device: tuple[int, ...], held: float
) -> None:
    costs = StageCosts(
        forward_s=(1.0, 1.0), input_gradient_s=(1.0, 2.0), activation_bytes=(1.0, 1.0)
    )
    placement = placed(device, [(0, 1)])
    room = [held if device == (0, 1) else held + 1] * placement.devices
    r = round_of(placement, costs, split=False, links=None, memory_bytes=room)
    exact = shortest_period(r, time_limit_s=10.0)
    assert exact.proved
    assert exact.pattern is not None
    assert exact.pattern.period_s <= least_whole_period(r) * (1 + 1e-6)


@pytest.mark.parametrize("held", [1, 2, 4])
def test_the_period_under_a_limit_is_the_round_trip_over_what_is_under_way(held: int) -> None:
    """Chain of p stages, K micro-batches on each: max(t, p t / K), proved."""
    p = 4
    costs = uniform(p, activation_bytes=1.0)
    r = round_of(chain(p), costs, split=False, links=None, memory_bytes=[float(held)] * p)
    exact = shortest_period(r, time_limit_s=20.0)
    assert exact.proved
    assert exact.pattern is not None
    assert exact.pattern.period_s == pytest.approx(max(3.0, 3.0 * p / held), rel=1e-6)


OPTIMAL = {
    "chain": (chain(4), uniform(4), False, 16),
    "chain of halves": (chain(8), uniform(8), True, 24),
    "v": (v_shape(4), uniform(8), True, 16),
    "opposite": (bidirectional(4), uniform(4, weight_gradient_s=0.0), False, 16),
    "two branches that join": (
        placed([0, 1, 2, 2], [(0, 2), (1, 2), (2, 3)]), uniform(4), False, 16,
    ),
    "a device with two stages": (
        placed([0, 1, 2, 1], [(0, 1), (1, 2), (2, 3)]), uniform(4), False, 12,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OPTIMAL)
def test_proved_optimal(what: str) -> None:
    """No order of these tasks is faster: the step equals a bound that no schedule can beat."""
    placement, costs, split, microbatches = OPTIMAL[what]
    found = find_schedule(placement, microbatches, costs, split=split)
    assert found.stop is Stop.OPTIMAL
    assert found.step_s == pytest.approx(found.lower_bound_s, rel=1e-6)


def test_embedding_shared_by_all_devices() -> None:
    """A table split over all devices at both ends of the pipeline; 1F1B has no place for it."""
    p = 4
    ends = [*range(p), *range(p), *range(p)]
    edges = [(i, p) for i in range(p)] + [(p + i, p + i + 1) for i in range(p - 1)]
    edges += [(2 * p - 1, 2 * p + i) for i in range(p)]
    seconds = (0.5,) * p + (1.0,) * p + (0.5,) * p
    costs = StageCosts(
        forward_s=seconds, input_gradient_s=seconds, weight_gradient_s=seconds,
        activation_bytes=(1.0,) * (3 * p),
    )  # fmt: skip
    free = find_schedule(placed(ends, edges), 16, costs)
    assert free.stop is Stop.OPTIMAL
    assert free.period_s == free.period_bound_s == 6.0
    tight = find_schedule(placed(ends, edges), 16, costs, memory_bytes=[8.0] * p)
    assert max(tight.timeline.peak_bytes) <= 8.0
    assert free.step_s <= tight.step_s <= 1.1 * tight.lower_bound_s


PUBLISHED = {
    "1f1b": (chain(4), False),
    "zb-h1": (chain(4), True),
    "zb-v": (v_shape(4), True),
    "chimera": (bidirectional(4), False),
    "interleaved": (looped(4, 2), False),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_never_worse_than_the_published_schedule(name: str) -> None:
    placement, split = PUBLISHED[name]
    rng = np.random.default_rng(5)
    for spread in (0.0, 0.3):
        stages = placement.stages
        costs = StageCosts(
            forward_s=tuple((1 + spread * rng.uniform(-1, 1, stages)).tolist()),
            input_gradient_s=tuple((1 + spread * rng.uniform(-1, 1, stages)).tolist()),
            weight_gradient_s=tuple((1 + spread * rng.uniform(-1, 1, stages)).tolist()),
            activation_bytes=(1.0,) * stages, weight_input_bytes=(0.5,) * stages,
        )  # fmt: skip
        theirs = simulate(build(name, 4, 8), costs)
        found = find_schedule(
            placement, 8, costs, memory_bytes=theirs.peak_bytes, split=split, time_limit_s=2.0
        )
        assert found.step_s <= theirs.step_s * (1 + 1e-9)


def test_transfers_are_part_of_the_search() -> None:
    costs = uniform(4, output_bytes=1.0, activation_bytes=1.0)
    links = Links(bandwidth_bytes_per_s=0.5)
    found = find_schedule(chain(4), 24, costs, links=links)
    plain = simulate(build("1f1b", 4, 24), costs, links)
    assert found.step_s < plain.step_s
    assert found.step_s == simulate(found.schedule, costs, links).step_s


def test_the_same_search_gives_the_same_schedule() -> None:
    costs = uniform(8, activation_bytes=1.0, weight_input_bytes=1.0)
    first, second = (
        find_schedule(v_shape(4), 9, costs, memory_bytes=[5.0] * 4, seed=3) for _ in range(2)
    )
    assert first.schedule == second.schedule
    assert (first.step_s, first.origin) == (second.step_s, second.origin)


def test_what_does_not_fit_says_by_how_much() -> None:
    costs = uniform(4, activation_bytes=4.0, weight_bytes=2.0)
    with pytest.raises(PlanError) as caught:
        find_schedule(chain(4), 8, costs, memory_bytes=[5.0, 6.0, 6.0, 6.0])
    assert caught.value.kind == "does-not-fit"
    assert caught.value.where == "device 0"
    assert "allow 1 bytes more" in caught.value.remedy
    assert math.isfinite(find_schedule(chain(4), 8, costs, memory_bytes=[6.0] * 4).step_s)
