"""Schedules as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import PlanError
from planner.pipeline.schedule import (
    read_schedule,
    simulate,
    uniform,
    with_transfers,
    write_schedule,
)
from tests.planner.pipeline.schedule.cases import CASES, case

OWN: dict[str, Any] = {
    "format": "meshwright-schedule", "version": 1, "devices": 2, "device": [0, 1],
    "microbatches": 1,
    "tasks": [
        [["forward", 0, 0], ["backward", 0, 0]],
        [["forward", 1, 0], ["input-gradient", 1, 0], ["weight-gradient", 1, 0]],
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_schedule_survives_its_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    for schedule in (case(name), with_transfers(case(name))):
        write_schedule(path, schedule)
        first = path.read_bytes()
        again = read_schedule(path)
        assert again == schedule
        assert again.name == name
        write_schedule(path, again)
        assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_a_hand_written_table_runs(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(OWN))
    timeline = simulate(read_schedule(path), uniform(2))
    assert timeline.step_s == 5.0  # the last weight gradient runs beside the first stage's backward


def changed(**parts: Any) -> dict[str, Any]:
    return OWN | parts


BAD: dict[str, tuple[str, str]] = {
    "nothing": ("", "is not a valid schedule"),
    "cut short": (json.dumps(OWN)[:-9], "is not a valid schedule"),
    "a list": ("[]", "is not a valid schedule"),
    "another format": (json.dumps(changed(format="other")), "is of format 'other'"),
    "a later version": (json.dumps(changed(version=9)), "version 9"),
    "an unknown key": (json.dumps(changed(colour="red")), "colour"),
    "an unknown task": (
        json.dumps(changed(tasks=[[["forwards", 0, 0]], []])), "tasks[0][0][0]",
    ),
    "a negative number": (json.dumps(changed(device=[0, -1])), "device[1]"),
    "a missing task": (json.dumps(changed(microbatches=2)), "lacks the forward of micro-batch 1"),
    "a circle": (
        json.dumps(changed(edges=[[0, 1], [1, 0]])), "in a circle through chunks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_one_error(what: str, tmp_path: Path) -> None:
    text, message = BAD[what]
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        read_schedule(path)
    assert message in caught.value.message
    assert caught.value.where == str(path)
    assert caught.value.remedy


def test_places_that_hold_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(PlanError, match="cannot be read"):
            read_schedule(path)
    with pytest.raises(PlanError, match="cannot be written"):
        write_schedule(tmp_path / "absent" / "s.json", case("1f1b"))
