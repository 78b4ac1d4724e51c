"""Schedules in rounds: what must come first does, and no slot holds two micro-batches at once."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from planner.common.errors import PlanError
from planner.pipeline.schedule import Kind, StageCosts, build, simulate
from planner.pipeline.schedule.lockstep import PHASE, Lockstep, Spans, lockstep

NAMES = ("gpipe", "1f1b", "1f1b-eager", "1f1b-deep", "zb-h1", "zb-h2")
CASES = [*product(NAMES, (2, 3, 4), (1, 2, 5, 8))]


def random_costs(stages: int, seed: int) -> StageCosts:
    draw = np.random.default_rng(seed)
    columns = ("forward_s", "input_gradient_s", "weight_gradient_s")
    return StageCosts(**{name: tuple(draw.uniform(0.1, 1.0, stages)) for name in columns})


@pytest.mark.parametrize(("name", "stages", "microbatches"), CASES)
def test_a_round_reads_what_earlier_ones_sent(name: str, stages: int, microbatches: int):
    schedule = build(name, stages, microbatches)
    found = lockstep(schedule)
    for (kind, s, m), r in found.at.items():
        if kind is Kind.FORWARD and s:
            assert r > found.at[kind, s - 1, m]
        if kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
            assert r >= found.at[Kind.FORWARD, s, m]
            if s + 1 < stages:
                assert r > found.at[kind, s + 1, m]
        if kind is Kind.WEIGHT_GRADIENT:
            assert r >= found.at[Kind.INPUT_GRADIENT, s, m]
    for s in range(stages):
        own = [(task.kind, task.chunk, task.microbatch) for task in schedule.tasks(s)]
        moments = [(found.at[task], PHASE[task[0]]) for task in own]
        assert moments == sorted(set(moments))  # in the schedule's order, one in a phase


class Replay:
    """The slots of all stages, as the rounds write and read them."""

    def __init__(self, found: Lockstep) -> None:
        self.found = found
        self.held: dict[tuple[int, int, int], int] = {}  # (pool, stage, slot) -> micro-batch

    def write(self, spans: Spans, s: int, m: int) -> None:
        assert spans.slot[s, m] < spans.most[s]
        self.held[id(spans), s, spans.slot[s, m]] = m

    def check(self, spans: Spans, s: int, m: int) -> None:
        assert self.held[id(spans), s, spans.slot[s, m]] == m

    def arrive(self, spans: Spans, s: int, r: int, sent: tuple[Kind, int] | None) -> None:
        """What a neighbour sent; something arrives in every round, of use or not."""
        if sent is None:
            self.held[id(spans), s, spans.spare[s, r]] = -1
        else:
            self.write(spans, s, sent[1])

    def run(self, kind: Kind, s: int, m: int) -> None:
        found = self.found
        if s:
            self.check(found.activations, s, m)
        if kind is Kind.FORWARD:
            self.write(found.saved, s, m)
            return
        self.check(found.saved, s, m)
        if s + 1 < found.stages:
            self.check(found.gradients, s, m)
        if kind is Kind.INPUT_GRADIENT:
            self.write(found.between, s, m)
        if kind is Kind.WEIGHT_GRADIENT:
            self.check(found.between, s, m)


@pytest.mark.parametrize(("name", "stages", "microbatches"), CASES)
def test_slots_replayed_hold_what_is_read(name: str, stages: int, microbatches: int):
    found = lockstep(build(name, stages, microbatches))
    replay = Replay(found)
    for r in range(found.rounds):
        for s in range(stages):
            replay.arrive(found.gradients, s, r, found.tasks.get((r - 1, 1, s + 1)))
        for phase, s in product(range(3), range(stages)):
            if task := found.tasks.get((r, phase, s)):
                replay.run(task[0], s, task[1])
        for s in range(stages):
            replay.arrive(found.activations, s, r, found.tasks.get((r, 0, s - 1)))


@pytest.mark.parametrize(("name", "stages", "microbatches"), CASES)
def test_rounds_are_no_faster_than_the_schedule(name: str, stages: int, microbatches: int):
    schedule = build(name, stages, microbatches)
    for seed in range(3):
        costs = random_costs(stages, seed)
        assert lockstep(schedule).step_s(costs) >= simulate(schedule, costs).step_s * (1 - 1e-9)


@pytest.mark.parametrize("name", ["gpipe", "1f1b-eager"])
def test_equal_stages_lose_nothing(name: str):
    schedule = build(name, 4, 8)
    costs = StageCosts(
        forward_s=(1.0,) * 4, input_gradient_s=(1.0,) * 4, weight_gradient_s=(0.5,) * 4
    )
    simulated_s = simulate(schedule, costs).step_s
    assert abs(lockstep(schedule).step_s(costs) - simulated_s) < 1e-9 * simulated_s


def test_micro_batches_in_flight_are_those_of_the_schedule():
    def most(name: str) -> tuple[int, ...]:
        found: Lockstep = lockstep(build(name, 4, 8))
        return found.saved.most

    assert most("gpipe") == (8, 8, 8, 8)
    assert most("1f1b") == (4, 3, 2, 1)
    assert most("1f1b-eager") == (7, 5, 3, 1)


@pytest.mark.parametrize("name", ["interleaved", "zb-v", "chimera", "token-slices"])
def test_other_placements_are_refused(name: str):
    with pytest.raises(PlanError, match="cannot run in rounds"):
        lockstep(build(name, 4, 8))
