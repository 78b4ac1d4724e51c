"""Tasks added to schedules: what they cost and what they free."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from planner.pipeline.schedule import (
    Kind,
    Links,
    StageCosts,
    build,
    check,
    simulate,
    uniform,
    with_offload,
    with_optimizer,
    with_recomputation,
    with_sync,
    with_transfers,
)
from tests.planner.pipeline.schedule.cases import CASES, case


@pytest.mark.parametrize("name", CASES)
def test_all_together_still_run(name: str) -> None:
    schedule = with_optimizer(with_sync(with_recomputation(case(name)), parts=3))
    full = check(with_transfers(with_offload(schedule)))
    costs = uniform(
        schedule.placement.stages, recompute_s=1.0, sync_s=3.0, optimizer_s=1.0, offload_s=0.5,
        fetch_s=0.5, activation_bytes=4.0, boundary_bytes=1.0, output_bytes=1.0, weight_bytes=1.0,
        gradient_bytes=1.0,
    )  # fmt: skip
    timeline = simulate(full, costs, Links(latency_s=0.1, bandwidth_bytes_per_s=10.0))
    assert timeline.step_s > simulate(case(name), costs).step_s
    for curve in timeline.memory:
        assert curve.held_bytes.min() >= -1e-9
    held = [timeline.memory[d].held_bytes[-1] for d in range(schedule.devices)]
    chunks = [len(schedule.placement.chunks_on(d)) for d in range(schedule.devices)]
    assert held == pytest.approx(chunks)  # at the end only the weights are left


def test_recomputation_keeps_boundaries_only() -> None:
    p, m = 4, 8
    schedule = build("1f1b", p, m)
    costs = uniform(p, recompute_s=1.0, activation_bytes=10.0, boundary_bytes=1.0)
    again = simulate(with_recomputation(schedule), costs)
    assert again.peak_bytes == tuple(10.0 + (p - i - 1) for i in range(p))
    # Forwards once more, of which only the last stage's first is not hidden in the fill.
    assert again.step_s <= (m + p - 1) * 4.0
    one = simulate(with_recomputation(schedule, {0}), costs)
    assert one.peak_bytes[1:] == simulate(schedule, costs).peak_bytes[1:]
    assert one.peak_bytes[0] == again.peak_bytes[0]


def test_recomputation_runs_while_the_gradient_is_on_its_way() -> None:
    schedule = with_recomputation(build("1f1b", 2, 1), {0})
    costs = uniform(2, recompute_s=1.0)
    assert simulate(schedule, costs).step_s == 1 + 1 + 2 + 2


def test_offload_frees_memory_and_comes_back_in_time() -> None:
    p, m = 8, 32
    schedule = build("1f1b", p, m)
    costs = uniform(p, offload_s=0.5, fetch_s=0.5, activation_bytes=1.0)
    moved = simulate(with_offload(schedule), costs)
    assert moved.step_s == simulate(schedule, costs).step_s
    assert moved.peak_bytes[0] < p
    slow = replace(costs, fetch_s=(50.0,) * p)
    assert simulate(with_offload(schedule), slow).step_s > 50.0


def test_gradient_sums_overlap_with_the_last_backward() -> None:
    """Parts of equal size follow each other: only the last is fully exposed on the first stage."""
    p, m = 4, 8
    schedule = build("1f1b", p, m)
    costs = uniform(p, sync_s=1.0)
    base = simulate(schedule, costs).step_s
    ends = [simulate(with_sync(schedule, parts=k), costs).step_s for k in (1, 2, 4)]
    assert ends == [base + 1, base + 0.5, base + 0.25]
    # Later stages are done earlier and hide their sums.
    late = StageCosts(**{n: getattr(costs, n) for n in ("forward_s", "input_gradient_s")},
                      sync_s=(0.0, 0.0, 0.0, 4.0))  # fmt: skip
    bare = simulate(schedule, late).step_s
    assert simulate(with_sync(schedule), late).step_s <= bare + 1.0


def test_copies_of_a_stage_start_their_sum_together() -> None:
    schedule = with_sync(build("chimera", 4, 4))
    timeline = simulate(schedule, uniform(4, sync_s=2.0))
    starts: dict[int, set[float]] = {}
    for device in range(4):
        tasks, start, _ = timeline.device(device)
        for task, begin in zip(tasks, start.tolist(), strict=True):
            if task.kind is Kind.SYNC:
                stage = schedule.placement.stage[task.chunk]
                starts.setdefault(stage, set()).add(begin)
    assert len(starts) == 4
    assert all(len(moments) == 1 for moments in starts.values())


def test_transfers_are_hidden_or_not() -> None:
    p, m = 4, 8
    costs = uniform(p, output_bytes=1.0)
    schedule = build("1f1b", p, m)
    base = simulate(schedule, costs).step_s
    links = Links(bandwidth_bytes_per_s=4.0)
    beside = simulate(schedule, costs, links)
    between = simulate(schedule, costs, replace(links, overlap=False))
    assert base < beside.step_s < between.step_s
    assert base + 2 * (p - 1) * 0.25 <= between.step_s <= (m + p - 1) * 3.5
    assert beside.transfers.size_bytes.sum() == 2 * (p - 1) * m
    eager = simulate(build("1f1b-eager", p, m), costs, Links(latency_s=2.0))
    assert eager.step_s < simulate(schedule, costs, Links(latency_s=2.0)).step_s


def test_gradients_are_held_until_the_update() -> None:
    p = 3
    costs = uniform(p, gradient_bytes=5.0, state_bytes=7.0, weight_bytes=2.0, optimizer_s=1.0)
    timeline = simulate(with_optimizer(build("1f1b", p, 4)), costs)
    for curve in timeline.memory:
        assert curve.held_bytes[0] == 9.0
        assert curve.peak_bytes == 14.0
        assert curve.held_bytes[-1] == 9.0
