"""Memory of stages that take turns on one group of devices."""

from __future__ import annotations

from itertools import pairwise

import pytest

from costmodel import parse_cluster
from planner.pipeline.divide.simulated import PipelineShape, costs_of, ranked
from planner.pipeline.divide.stage_price import StagePrice
from planner.pipeline.schedule import Turns

GROUPS, CHUNKS, COUNT = 2, 3, 4
STATIC = (5.0, 7.0, 11.0, 13.0, 17.0, 19.0)
TEMPORARY = (30.0, 2.0, 3.0, 40.0, 20.0, 8.0)


def prices(activation_bytes: float) -> list[StagePrice]:
    return [
        StagePrice(1.0, 1.0, 1.0, 0.0, static + temporary + activation_bytes, activation_bytes,
                   0.0, static)
        for static, temporary in zip(STATIC, TEMPORARY, strict=True)
    ]  # fmt: skip


def test_stages_of_a_group_share_the_memory_of_temporaries() -> None:
    stages = GROUPS * CHUNKS
    given = ("none",) * stages, prices(0.0), [0.0] * (stages - 1), (1,) * stages
    costs = costs_of(*given, Turns(CHUNKS).group(stages))
    for group in range(GROUPS):
        held = sum(costs.weight_bytes[group::GROUPS])
        running = max(TEMPORARY[group::GROUPS])  # one stage of a group runs at a time
        assert held == pytest.approx(sum(STATIC[group::GROUPS]) + running)
    alone = costs_of(*given, range(stages))
    everything = [a + b for a, b in zip(STATIC, TEMPORARY, strict=True)]
    assert alone.weight_bytes == pytest.approx(everything)


def test_the_peak_of_an_interleaved_pipeline_counts_each_activation() -> None:
    stages, each = GROUPS * CHUNKS, 100.0
    cuts = tuple(range(stages + 1))
    shape = PipelineShape(cuts, (1,) * stages, COUNT, ("none",) * stages, Turns(CHUNKS))
    machine = parse_cluster(f"{GROUPS}xh100")
    peaks = [
        ranked(shape, prices(size), [0.0] * (stages - 1), machine, 1e12)[0].peak_bytes
        for size in (0.0, each)
    ]
    for without, with_ in pairwise(peaks):
        more = [b - a for a, b in zip(without, with_, strict=True)]
        assert all(m % each == 0.0 and m >= each for m in more)
