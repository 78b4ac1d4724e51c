"""Bounds from critical paths against the simulated step of every division."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.divide.candidates import in_turn_simulator
from planner.pipeline.divide.critical_paths import Tasks, least_of_schedules_s, paths_of
from planner.pipeline.schedule import Links, Simulator, StageCosts, build, simulate, with_optimizer

PLACES = 7
SECONDS = st.lists(st.floats(0.1, 9.0), min_size=PLACES - 1, max_size=PLACES - 1)


def runs(each: list[float]) -> np.ndarray:
    sums = np.concatenate(([0.0], np.cumsum(each)))
    found = sums[None, :] - sums[:, None]
    return np.where(np.tril(np.ones_like(found, dtype=bool)), np.inf, found)


@settings(max_examples=20, deadline=None)
@given(SECONDS, SECONDS, SECONDS, st.floats(0.0, 3.0), st.sampled_from([2, 4, 8]))
def test_no_division_is_below_the_paths(
    forward: list[float], back: list[float], once: list[float], sent: float, count: int
) -> None:
    tasks = Tasks(*map(runs, (forward, back, once, back, back)))
    moved = np.full((4, PLACES), sent)
    moved[0] = 0.0
    simulator = in_turn_simulator(count, 2, 2, updated=True)
    every = [(0, *k, PLACES - 1) for k in itertools.combinations(range(1, PLACES - 1), 3)]
    first = paths_of(simulator, tasks, moved, math.inf)
    steps = [first.step_s(places) for places in every]
    paths = paths_of(simulator, tasks, moved, min(steps))
    for places, step_s in zip(every, steps, strict=True):
        before = np.zeros(len(paths.each))
        for s in range(4):  # every part of the division is bounded by what it becomes
            ends = slice(places[s + 1], places[s + 1] + 1)
            bounds, until = paths.ends_s(s, places[s], ends, before)
            assert bounds[0] <= step_s * (1 + 1e-9)
            before = until[:, 0]
    assert paths.least_s <= min(steps) * (1 + 1e-9)
    assert first.least_s <= paths.least_s
    assert paths.least_s >= 0.6 * min(steps)


def test_paths_are_sharp_where_one_division_is_best() -> None:
    """Equal work, transfers as long as it: the bound is the step of equal stages."""
    tasks = Tasks(*(runs([x] * 4) for x in (1.0, 2.0, 0.0, 1.0, 1.0)))
    moved = np.array([[0.0] * 5] + [[1.0] * 5] * 3)
    paths = paths_of(in_turn_simulator(8, 2, 2, updated=True), tasks, moved, 1e9)
    assert paths.least_s == pytest.approx(paths.step_s((0, 1, 2, 3, 4)))


def test_the_fastest_schedule_bounds_a_division() -> None:
    tasks = [Tasks(1.0 + s, 4.0, 0.5, 3.0, 1.0) for s in range(3)]
    costs = StageCosts(
        forward_s=(1.0, 2.0, 3.0), input_gradient_s=(3.0,) * 3, weight_gradient_s=(1.0,) * 3,
        optimizer_s=(0.5,) * 3, output_bytes=(2.0, 2.0, 0.0),
    )  # fmt: skip
    names = ("1f1b", "1f1b-deep", "zb-h1")
    each = [
        simulate(with_optimizer(build(name, 3, 6)), costs, Links(bandwidth_bytes_per_s=1.0)).step_s
        for name in names
    ]
    assert least_of_schedules_s(names, 6, 1, tasks, [0.0, 2.0, 2.0]) == pytest.approx(min(each))


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "interleaved"])
def test_nodes_of_the_critical_path_add_up_to_the_step(name: str) -> None:
    costs = StageCosts(
        forward_s=(1.0, 2.0) * 2, input_gradient_s=(3.0, 1.0) * 2, output_bytes=(0.5,) * 3 + (0.0,)
    )
    simulator = Simulator(build(name, 2 if name == "interleaved" else 4, 4))
    timeline = simulator.run(costs, Links(bandwidth_bytes_per_s=1.0))
    spent = [timeline.node_duration_s[node] * share for node, share in timeline.critical_nodes()]
    assert sum(spent) == pytest.approx(timeline.step_s)
