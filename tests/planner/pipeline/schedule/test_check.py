"""Schedules that cannot run are refused with the names of the tasks at fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.schedule_search.flows import placed
from planner import PlanError
from planner.pipeline.schedule import (
    Kind,
    Placement,
    Schedule,
    StageCosts,
    bidirectional,
    build,
    chain,
    check,
    simulate,
    table_of,
    uniform,
    with_transfers,
)

F, B = Kind.FORWARD, Kind.BACKWARD
G, W = Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT


def two(first: list[tuple[int, ...]], second: list[tuple[int, ...]]) -> Schedule:
    """Two stages, two micro-batches."""
    return Schedule("own", chain(2), 2, (table_of(first), table_of(second)))


GOOD_0 = [(F, 0, 0), (F, 0, 1), (B, 0, 0), (B, 0, 1)]
GOOD_1 = [(F, 1, 0), (B, 1, 0), (F, 1, 1), (B, 1, 1)]

WRONG: dict[str, tuple[list[tuple[int, ...]], list[tuple[int, ...]], str, str]] = {
    "missing": (GOOD_0, GOOD_1[:3], "device 1", "lacks the backward of micro-batch 1 on chunk 1"),
    "missing half": (
        [(F, 0, 0), (F, 0, 1), (G, 0, 0), (W, 0, 0), (G, 0, 1)], GOOD_1, "device 0",
        "lacks the weight-gradient of micro-batch 1 on chunk 0",
    ),
    "twice": (
        [*GOOD_0, (B, 0, 1)], GOOD_1, "device 0",
        "lists the backward of micro-batch 1 on chunk 0 twice",
    ),
    "whole and halves": (
        [*GOOD_0, (G, 0, 1), (W, 0, 1)], GOOD_1, "device 0",
        "the backward of micro-batch 1 on chunk 0, which nothing asks for",
    ),
    "wrong device": (
        [*GOOD_0, (B, 1, 1)], GOOD_1[:3], "device 0",
        "lists the backward of micro-batch 1 on chunk 1, which is on device 1",
    ),
    "reads too early": (
        [(F, 0, 0), (B, 0, 1), (F, 0, 1), (B, 0, 0)], GOOD_1, "device 0",
        "backward of micro-batch 1 on chunk 0 reads too early: it stands before the forward of "
        "micro-batch 1",
    ),
    "deadlock": (
        [(F, 0, 0), (B, 0, 0), (F, 0, 1), (B, 0, 1)],
        [(F, 1, 0), (F, 1, 1), (B, 1, 0), (B, 1, 1)],
        "schedule", "deadlock: the ",
    ),
    "no such chunk": ([*GOOD_0, (F, 2, 0)], GOOD_1, "device 0", "names chunk 2, there are 2"),
    "no such micro-batch": ([*GOOD_0, (F, 0, 9)], GOOD_1, "device 0", "names micro-batch 9"),
    "no such kind": ([*GOOD_0, (99, 0, 0)], GOOD_1, "device 0", "names kind 99"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_run_is_refused(what: str) -> None:
    first, second, where, message = WRONG[what]
    with pytest.raises(PlanError) as caught:
        check(two(first, second))
    assert message in caught.value.message
    assert caught.value.where == where
    assert caught.value.kind == "bad-schedule"
    assert caught.value.remedy
    with pytest.raises(PlanError, match=r"schedule|device"):
        simulate(two(first, second), uniform(2))


def test_a_deadlock_names_a_ring_of_tasks() -> None:
    first, second, _, _ = WRONG["deadlock"]
    with pytest.raises(PlanError) as caught:
        check(two(first, second))
    for task in (
        "backward of micro-batch 0 on chunk 0 (device 0)",
        "forward of micro-batch 1 on chunk 0 (device 0)",
        "forward of micro-batch 1 on chunk 1 (device 1)",
        "backward of micro-batch 0 on chunk 1 (device 1)",
    ):
        assert task in caught.value.message


def test_receives_in_the_wrong_order_deadlock() -> None:
    explicit = with_transfers(two(GOOD_0, GOOD_1))
    rows = [tuple(row) for row in explicit.tables[0].tolist()]
    receive = next(row for row in rows if row[0] == Kind.RECEIVE_GRADIENT)
    rows.remove(receive)
    rows.insert(0, receive)
    with pytest.raises(PlanError, match="deadlock"):
        check(replace(explicit, tables=(table_of(rows), explicit.tables[1])))


def test_a_read_before_its_receive_is_too_early() -> None:
    explicit = with_transfers(two(GOOD_0, GOOD_1))
    rows = [tuple(row) for row in explicit.tables[1].tolist()]
    assert rows[0][0] == Kind.RECEIVE_ACTIVATION
    rows[0], rows[1] = rows[1], rows[0]
    with pytest.raises(PlanError, match="forward of micro-batch 0 on chunk 1 reads too early"):
        check(replace(explicit, tables=(explicit.tables[0], table_of(rows))))


@pytest.mark.parametrize("kind", [Kind.SEND_ACTIVATION, Kind.RECEIVE_GRADIENT])
def test_transfers_are_listed_all_or_not_at_all(kind: Kind) -> None:
    explicit = with_transfers(two(GOOD_0, GOOD_1))
    table = explicit.tables[0]
    gone = int(np.flatnonzero(table[:, 0] == kind)[0])
    less = np.delete(table, gone, axis=0)
    with pytest.raises(PlanError, match="list a send and a receive for every transfer"):
        check(replace(explicit, tables=(less, explicit.tables[1])))
    spare = np.concatenate((table, table[gone : gone + 1]))
    with pytest.raises(PlanError, match="twice"):
        check(replace(explicit, tables=(spare, explicit.tables[1])))


def test_costs_must_fit_the_schedule() -> None:
    schedule = build("1f1b", 4, 8)
    with pytest.raises(PlanError, match="are of 3 stages, the schedule has 4"):
        simulate(schedule, uniform(3))
    with pytest.raises(PlanError, match="give one for each stage"):
        StageCosts(forward_s=(1.0, 1.0), weight_bytes=(1.0,))
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(PlanError, match="forward_s"):
            StageCosts(forward_s=(bad,))


PLACEMENTS = {
    "a circle": lambda: placed([0, 1, 2], [(0, 1), (1, 2), (2, 0)]),
    "no such device": lambda: Placement(1, (0, 1), (0, 1), ((0, 1),), ((0, 1),)),
    "no such chunk": lambda: placed([0, 1], [(0, 5)]),
    "nothing": lambda: placed([], []),
    "stages with a gap": lambda: Placement(2, (0, 1), (0, 2), ((0, 1),), ((0, 1),)),
    "a chunk that none visits": lambda: Placement(2, (0, 1), (0, 1), ((0, 1),), ((0,),)),
    "an odd ring": lambda: bidirectional(6, 2),
}


@pytest.mark.parametrize("what", PLACEMENTS)
def test_impossible_placements_are_refused(what: str) -> None:
    with pytest.raises(PlanError) as caught:
        PLACEMENTS[what]()
    assert caught.value.where == "placement"
    assert caught.value.remedy


SHAPES = {
    "no micro-batches": {"microbatches": 0},
    "no slices": {"slices": 0},
    "a device without table": {"tables": (table_of(GOOD_0),)},
    "columns": {"tables": (np.zeros((2, 3), np.int32),) * 2},
    "routes": {"route": (0,)},
    "an absent route": {"route": (0, 1)},
}


@pytest.mark.parametrize("what", SHAPES)
def test_malformed_schedules_are_refused(what: str) -> None:
    with pytest.raises(PlanError) as caught:
        replace(two(GOOD_0, GOOD_1), **SHAPES[what])
    assert caught.value.where == "schedule"
    assert caught.value.remedy
