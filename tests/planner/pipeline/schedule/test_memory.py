"""The memory curve against a count of who holds what at a moment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.schedule import (
    Kind,
    Links,
    StageCosts,
    Timeline,
    build,
    simulate,
    uniform,
    with_offload,
    with_recomputation,
)
from tests.planner.pipeline.schedule.cases import CASES, case
from tests.planner.pipeline.schedule.test_registry import NAMES, random_costs

BACK = (Kind.BACKWARD, Kind.INPUT_GRADIENT)
Spans = dict[tuple[Kind, int, int, int], tuple[float, float]]


def spans_of(timeline: Timeline) -> Spans:
    """Start and end of every task."""
    found: Spans = {}
    for device in range(timeline.schedule.devices):
        for task, start, end in zip(*timeline.device(device), strict=True):
            key = (task.kind, task.chunk, task.microbatch, task.part)
            found[key] = (float(start), float(end))
    return found


def counted(spans: Spans, costs: StageCosts, timeline: Timeline, device: int, at: float) -> float:
    """Activations on a device at a moment, one forward after the other."""
    placement, slices = timeline.schedule.placement, timeline.schedule.slices
    held = 0.0
    for (kind, c, m, j), (start, _) in spans.items():
        if kind is not Kind.FORWARD or placement.device[c] != device or at < start:
            continue
        stage = placement.stage[c]
        whole = costs.activation_bytes[stage] / slices
        back = next(spans[k, c, m, j] for k in BACK if (k, c, m, j) in spans)
        weight = spans.get((Kind.WEIGHT_GRADIENT, c, m, j))
        again = spans.get((Kind.RECOMPUTE, c, m, j))
        if again is not None and at < again[0]:
            held += min(whole, costs.boundary_bytes[stage] / slices)
        elif at < back[1]:
            held += whole
        elif weight is not None and at < weight[1]:
            held += min(whole, costs.weight_input_bytes[stage] / slices)
    return held


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), again=st.booleans())
def test_activations_are_those_that_a_count_finds(name: str, seed: int, again: bool) -> None:
    schedule = with_recomputation(case(name)) if again else case(name)
    stages = schedule.placement.stages
    rng = np.random.default_rng(seed)
    base = random_costs(stages, seed)
    costs = StageCosts(
        forward_s=base.forward_s, input_gradient_s=base.input_gradient_s,
        weight_gradient_s=base.weight_gradient_s, recompute_s=base.recompute_s,
        activation_bytes=base.activation_bytes, state_bytes=base.weight_bytes,
        weight_input_bytes=tuple(rng.integers(0, 9, stages).astype(float).tolist()),
        boundary_bytes=tuple(rng.integers(0, 9, stages).astype(float).tolist()),
    )  # fmt: skip
    timeline = simulate(schedule, costs)
    spans = spans_of(timeline)
    moments: list[float] = rng.uniform(0.0, timeline.step_s, 6).tolist()
    for device, curve in enumerate(timeline.memory):
        chunks = schedule.placement.chunks_on(device)
        state = sum(costs.state_bytes[schedule.placement.stage[c]] for c in chunks)
        for at in moments:
            place = int(np.searchsorted(curve.time_s, at, side="right")) - 1
            ours = float(curve.held_bytes[place])
            assert ours == pytest.approx(state + counted(spans, costs, timeline, device, at))


@pytest.mark.parametrize("name", CASES)
def test_what_is_taken_is_given_back(name: str) -> None:
    schedule = with_offload(case(name))
    costs = uniform(schedule.placement.stages, activation_bytes=3.0, output_bytes=2.0,
                    offload_s=0.5, fetch_s=0.5)  # fmt: skip
    timeline = simulate(schedule, costs, Links(latency_s=0.3, bandwidth_bytes_per_s=5.0))
    for curve in timeline.memory:
        assert curve.held_bytes[-1] == pytest.approx(0.0)
        assert curve.held_bytes.min() >= -1e-9
        assert np.all(np.diff(curve.time_s) >= 0)


def test_buffers_of_transfers_are_counted_at_both_ends() -> None:
    """One micro-batch on two stages: an output of 5 bytes waits a second on its way."""
    costs = uniform(2, output_bytes=5.0)
    timeline = simulate(build("gpipe", 2, 1), costs, Links(latency_s=1.0))
    first, second = timeline.memory
    for curve in (first, second):
        # On its way from 1 to 2, and its gradient from 5 to 6; gone when the reader starts.
        for at, held in ((0.5, 0.0), (1.5, 5.0), (2.5, 0.0), (5.5, 5.0), (6.5, 0.0)):
            place = int(np.searchsorted(curve.time_s, at, side="right")) - 1
            assert curve.held_bytes[place] == held
