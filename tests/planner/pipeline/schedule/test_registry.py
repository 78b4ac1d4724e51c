"""Contracts that every schedule of the registry keeps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import PlanError
from planner.pipeline.schedule import (
    Kind,
    Links,
    Schedule,
    Simulator,
    StageCosts,
    build,
    check,
    schedules,
    simulate,
    uniform,
    with_optimizer,
    with_recomputation,
    with_transfers,
)
from tests.planner.pipeline.schedule.cases import CASES, case, slow_times

NAMES = sorted(schedules())


# Whose micro-batches must divide.
DIVIDED = ("chimera", "interleaved")


def test_every_schedule_has_a_case() -> None:
    assert list(CASES) == NAMES


def random_costs(stages: int, seed: int) -> StageCosts:
    rng = np.random.default_rng(seed)

    def some() -> tuple[float, ...]:
        return tuple(rng.integers(1, 9, stages).astype(float).tolist())

    return StageCosts(
        forward_s=some(), input_gradient_s=some(), weight_gradient_s=some(), recompute_s=some(),
        optimizer_s=some(), output_bytes=some(), activation_bytes=some(), weight_bytes=some(),
    )  # fmt: skip


def assert_same_times(schedule: Schedule, costs: StageCosts, links: Links) -> None:
    timeline = simulate(schedule, costs, links)
    slow = slow_times(schedule, costs, links)
    tasks = [task for device in range(schedule.devices) for task in schedule.tasks(device)]
    ends = [slow[t.kind, t.chunk, t.microbatch, t.part] for t in tasks]
    np.testing.assert_allclose(timeline.end_s, ends, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31), overlap=st.booleans(), again=st.booleans())
def test_times_are_those_of_the_slow_simulator(
    name: str, seed: int, overlap: bool, again: bool
) -> None:
    schedule = with_optimizer(with_recomputation(case(name)) if again else case(name))
    costs = random_costs(schedule.placement.stages, seed)
    links = Links(latency_s=0.25 * (seed % 3), bandwidth_bytes_per_s=4.0, overlap=overlap)
    assert_same_times(schedule, costs, links)


@pytest.mark.parametrize("name", NAMES)
def test_the_step_alone_is_that_of_the_whole_simulation(name: str) -> None:
    schedule = case(name)
    simulator = Simulator(schedule)
    for seed in range(5):
        costs = random_costs(schedule.placement.stages, seed)
        for links in (None, Links(latency_s=0.5, bandwidth_bytes_per_s=3.0)):
            assert simulator.step_s(costs, links) == simulate(schedule, costs, links).step_s


@pytest.mark.parametrize("name", NAMES)
def test_explicit_transfers_change_no_time(name: str) -> None:
    schedule = case(name)
    explicit = with_transfers(schedule)
    assert explicit.size > schedule.size
    costs = random_costs(schedule.placement.stages, 7)
    for links in (None, Links(latency_s=1.0), Links(bandwidth_bytes_per_s=2.0, overlap=False)):
        fast, slow = simulate(schedule, costs, links), simulate(explicit, costs, links)
        assert fast.step_s == pytest.approx(slow.step_s, rel=1e-12)
        assert fast.peak_bytes == pytest.approx(slow.peak_bytes, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_work_is_done_once_and_in_order(name: str) -> None:
    schedule = check(case(name))
    costs = random_costs(schedule.placement.stages, 3)
    timeline = simulate(schedule, costs)
    per_stage = np.array(costs.forward_s) + np.array(costs.backward_s)
    visits = np.zeros(schedule.devices)
    for route in schedule.route:
        for chunk in schedule.placement.routes[route]:
            stage = schedule.placement.stage[chunk]
            visits[schedule.placement.device[chunk]] += per_stage[stage]
    updates = [
        sum(
            costs.optimizer_s[schedule.placement.stage[t.chunk]]
            for t in schedule.tasks(d)
            if t.kind is Kind.OPTIMIZER
        )
        for d in range(schedule.devices)
    ]
    np.testing.assert_allclose(timeline.busy_s, visits + updates)
    for device in range(schedule.devices):
        _, start, end = timeline.device(device)
        assert np.all(start[1:] >= end[:-1] - 1e-9)
    assert 0 <= timeline.bubble < 1
    assert timeline.period_s <= timeline.step_s


@pytest.mark.parametrize("name", NAMES)
def test_the_critical_path_is_the_step(name: str) -> None:
    schedule = case(name)
    costs = random_costs(schedule.placement.stages, 11)
    timeline = simulate(schedule, costs, Links(latency_s=0.5, bandwidth_bytes_per_s=3.0))
    path = timeline.critical_path()
    assert sum(link.seconds for link in path) == pytest.approx(timeline.step_s)
    for link, following in pairwise(path):
        assert link.start_s + link.seconds == pytest.approx(following.start_s)


@pytest.mark.parametrize("name", NAMES)
def test_the_critical_path_goes_by_what_lets_a_node_begin(name: str) -> None:
    """Node by node: of those before it, the first of the ones that end last; many do at once."""
    schedule = case(name)
    seconds = uniform(schedule.placement.stages, forward_s=1.0, input_gradient_s=1.0)
    timeline = simulate(schedule, seconds, Links(latency_s=1.0))
    graph, start = timeline.graph, timeline.node_start_s
    spent = timeline.node_duration_s
    node = int(np.argmax(start + spent))
    path = [(node, float(start[node] + spent[node]))]
    while start[node] > 0:
        edges = np.flatnonzero(graph.after == node)
        if not len(edges):
            break
        ends = start[graph.before[edges]] + spent[graph.before[edges]] * graph.share[edges]
        until, node = float(start[node]), int(graph.before[edges[int(np.argmax(ends))]])
        path.append((node, until))
    wanted = [(k, (until - start[k]) / spent[k]) for k, until in reversed(path) if spent[k] > 0]
    assert timeline.critical_nodes() == wanted


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_is_the_same_every_time(name: str) -> None:
    assert case(name).digest() == case(name).digest()
    assert case(name) == case(name)
    assert case(name).name == name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_few_micro_batches_run_too(name: str, stages: int) -> None:
    for microbatches in (1, 2, 3, stages, 2 * stages):
        if name in DIVIDED and (microbatches % stages or (name == "chimera" and stages % 2)):
            continue
        schedule = build(name, stages, microbatches)
        timeline = simulate(schedule, uniform(schedule.placement.stages))
        assert timeline.step_s >= microbatches * 3 / schedule.slices


BAD = {
    "a name": lambda: build("1f1c", 4, 8),
    "no stages": lambda: build("1f1b", 0, 8),
    "no micro-batches": lambda: build("gpipe", 4, 0),
    "an option": lambda: build("gpipe", 4, 8, chunks=2),
    "micro-batches that stages do not divide": lambda: build("interleaved", 4, 6),
    "an odd pipeline": lambda: build("chimera", 3, 6),
    "updates": lambda: build("1f1b-stashed", 3, 6, update_every=0),
}


@pytest.mark.parametrize("what", BAD)
def test_what_a_schedule_does_not_take_is_an_error(what: str) -> None:
    with pytest.raises(PlanError) as caught:
        BAD[what]()
    assert caught.value.kind == "bad-schedule"
    assert caught.value.remedy
