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
from planner.pipeline.schedule import (
    Kind,
    Links,
    Simulator,
    StageCosts,
    Turns,
    build,
    simulate,
    with_optimizer,
)

PLACES = 7
TAKEN = st.sampled_from([Turns(2), Turns(2, back=True)])
SECONDS = st.lists(st.floats(0.1, 9.0), min_size=PLACES - 1, max_size=PLACES - 1)


def runs(each: list[float]) -> np.ndarray:
    sums = np.concatenate(([0.0], np.cumsum(each)))
    found = sums[None, :] - sums[:, None]
    return np.where(np.tril(np.ones_like(found, dtype=bool)), np.inf, found)


@settings(max_examples=20, deadline=None)
@given(SECONDS, SECONDS, SECONDS, st.floats(0.0, 3.0), st.sampled_from([2, 4, 8]), TAKEN)
def test_no_division_is_below_the_paths(
    forward: list[float], back: list[float], once: list[float], sent: float, count: int,
    turns: Turns,
) -> None:  # fmt: skip
    tasks = Tasks(*map(runs, (forward, back, once, back, back, back, forward)))
    moved = np.full((4, PLACES), sent)
    moved[0] = 0.0
    simulator = in_turn_simulator(count, 2, turns, updated=True)
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
    # paths that were found for other seconds
    other = Tasks(*map(runs, (back, forward, once, forward, forward, forward, back)))
    own = paths_of(simulator, other, moved, math.inf)
    again = paths_of(simulator, other, moved, math.inf, first.counts)
    assert again.least_s <= min(own.step_s(places) for places in every) * (1 + 1e-9)
    assert again.least_s >= 0.99 * own.least_s


@settings(max_examples=10, deadline=None)
@given(SECONDS, SECONDS, SECONDS, SECONDS, st.sampled_from([2, 4, 8]), TAKEN)
def test_no_division_is_below_the_paths_of_passes_that_are_long_together(
    forward: list[float], back: list[float], more: list[float], share: list[float], count: int,
    turns: Turns,
) -> None:  # fmt: skip
    once = [0.3] * (PLACES - 1)
    both = [sum(row) for row in zip(forward, back, more, strict=True)]
    none = [0.0] * (PLACES - 1)  # of the input gradients, so that the first stage has none
    least = Tasks(*map(runs, (forward, back, once, none, back, both, forward)))
    parts = [a * s / 9.0 for a, s in zip(more, share, strict=True)]
    longer = runs([b + m - a for b, m, a in zip(back, more, parts, strict=True)])
    found = least._replace(
        forward_s=runs([f + a for f, a in zip(forward, parts, strict=True)]),
        back_s=longer, weight_s=longer,
    )  # fmt: skip
    moved = np.full((4, PLACES), 0.2)
    moved[0] = 0.0
    simulator = in_turn_simulator(count, 2, turns, updated=True)
    bound_s = paths_of(simulator, least, moved, math.inf).least_s
    exact = paths_of(simulator, found, moved, math.inf)
    for k in itertools.combinations(range(1, PLACES - 1), 3):
        assert bound_s <= exact.step_s((0, *k, PLACES - 1)) * (1 + 1e-9)
    alone = least._replace(micro_s=least.forward_s + least.back_s)
    assert bound_s >= paths_of(simulator, alone, moved, math.inf).least_s * 0.9


def test_paths_are_sharp_where_one_division_is_best() -> None:
    """Equal work, transfers as long as it: the bound is the step of equal stages."""
    tasks = Tasks(*(runs([x] * 4) for x in (1.0, 2.0, 0.0, 1.0, 1.0, 3.0, 2.0)))
    moved = np.array([[0.0] * 5] + [[1.0] * 5] * 3)
    paths = paths_of(in_turn_simulator(8, 2, Turns(2), updated=True), tasks, moved, 1e9)
    assert paths.least_s == pytest.approx(paths.step_s((0, 1, 2, 3, 4)))


def step_of(name: str, count: int, tasks: list[list[float]], sent: list[float]) -> float:
    """The step under a schedule, from seconds of (forward, input, weight, once) of each stage."""
    forward, inward, weight, once = zip(*tasks, strict=True)
    costs = StageCosts(
        forward_s=forward, input_gradient_s=inward, weight_gradient_s=weight, optimizer_s=once,
        output_bytes=(*sent[1:], 0.0),
    )  # fmt: skip
    table = with_optimizer(build(name, len(tasks), count))
    return simulate(table, costs, Links(bandwidth_bytes_per_s=1.0)).step_s


NAMES = ("1f1b", "1f1b-deep", "zb-h1", "zb-h2")


def test_the_fastest_schedule_bounds_a_division() -> None:
    rows = [[1.0 + s, 3.0, 1.0, 0.5] for s in range(3)]
    each = [step_of(name, 6, rows, [0.0, 2.0, 2.0]) for name in NAMES]
    forward, inward, weight, once = np.array(rows).T[:, :, None]
    both = forward + inward
    tasks = Tasks(forward, inward + weight, once, inward, weight, both + weight, both)
    into_s = np.array([[0.0], [2.0], [2.0]])
    assert least_of_schedules_s(NAMES, 6, 1, tasks, into_s) == pytest.approx(min(each))


TIMES = st.lists(
    st.tuples(*(st.floats(0.1, 5.0),) * 4, *(st.floats(0.0, 3.0),) * 2), min_size=3, max_size=3
)


@settings(max_examples=30, deadline=None)
@given(TIMES, st.integers(2, 9), st.floats(0.0, 2.0))
def test_passes_that_are_long_together_bound_every_split(
    times: list[tuple[float, ...]], count: int, sent: float
) -> None:
    """Whichever of the passes of a micro-batch takes longer than its own least."""
    into = [0.0, sent, sent]
    least = np.array([row[:4] for row in times])
    least[0, 1] = 0.0
    more = np.array([row[4:] for row in times])
    found = np.array([row.copy() for row in least])
    found[:, 0] += more[:, 0]
    found[1:, 1] += more[1:, 1] / 2
    found[1:, 2] += more[1:, 1] / 2
    found[0, 2] += more[0, 1]
    forward, inward, weight, once = least.T[:, :, None]
    micro = found[:, :3].sum(axis=1)[:, None]
    sent_s = found[:, :2].sum(axis=1)[:, None]
    sent_s[0] = forward[0]  # what comes before gradients is not known of the first stage
    tasks = Tasks(forward, inward + weight, once, inward, weight, micro, forward + inward)
    for name in NAMES:
        into_s = np.array(into)[:, None]
        (bound,) = least_of_schedules_s((name,), count, 1, tasks, into_s)
        (early,) = least_of_schedules_s((name,), count, 1, tasks._replace(sent_s=sent_s), into_s)
        alone = step_of(name, count, least.tolist(), into)
        step_s = step_of(name, count, found.tolist(), into)
        assert alone * (1 - 1e-9) <= bound <= step_s * (1 + 1e-9)
        assert alone * (1 - 1e-9) <= early <= step_s * (1 + 1e-9)


def test_what_comes_before_gradients_are_sent_is_no_weight_gradient() -> None:
    """Where weight gradients may wait, they could else take all that passes take longer."""
    one, none = np.full((2, 1), 1.0), np.zeros((2, 1))
    tasks = Tasks(one, 2 * one, none, one * [[0.0], [1.0]], one, 6 * one, 2 * one)
    late, early = (
        least_of_schedules_s(("zb-h1",), 2, 1, tasks._replace(sent_s=sent_s), none)[0]
        for sent_s in (2 * one, one * [[1.0], [5.0]])
    )
    assert early >= late + 1.5


@settings(max_examples=30, deadline=None)
@given(TIMES, TIMES, st.integers(2, 9), st.floats(0.0, 2.0))
def test_many_cases_at_once_take_as_long_as_each_alone(
    one: list[tuple[float, ...]], other: list[tuple[float, ...]], count: int, sent: float
) -> None:
    rows = np.array([[row[:4] for row in times] for times in (one, other)])
    forward, inward, weight, once = rows.transpose(2, 1, 0)
    seconds = {
        Kind.FORWARD: forward, Kind.BACKWARD: inward + weight, Kind.INPUT_GRADIENT: inward,
        Kind.WEIGHT_GRADIENT: weight, Kind.OPTIMIZER: once,
    }  # fmt: skip
    into = [0.0, sent, sent]
    into_s = np.array([into, into]).T
    for name in NAMES:
        simulator = Simulator(with_optimizer(build(name, 3, count)))
        alone = [step_of(name, count, case.tolist(), into) for case in rows]
        assert simulator.steps_s(seconds, into_s) == pytest.approx(alone)
        steps_s, counts, moved = simulator.paths(seconds, into_s)
        along = sum(counts[kind] * seconds[kind] for kind in seconds) + moved * into_s
        assert steps_s == pytest.approx(alone)
        assert along.sum(axis=0) == pytest.approx(alone)


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "interleaved"])
def test_nodes_of_the_critical_path_add_up_to_the_step(name: str) -> None:
    costs = StageCosts(
        forward_s=(1.0, 2.0) * 2, input_gradient_s=(3.0, 1.0) * 2, output_bytes=(0.5,) * 3 + (0.0,)
    )
    simulator = Simulator(build(name, 2 if name == "interleaved" else 4, 4))
    timeline = simulator.run(costs, Links(bandwidth_bytes_per_s=1.0))
    spent = [timeline.node_duration_s[node] * share for node, share in timeline.critical_nodes()]
    assert sum(spent) == pytest.approx(timeline.step_s)
