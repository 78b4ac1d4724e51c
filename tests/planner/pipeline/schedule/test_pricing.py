"""A schedule file with costs, priced and shown beside others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import PlanError
from planner.pipeline.schedule import (
    build,
    price,
    read_own,
    simulate,
    uniform,
    with_recomputation,
    write_schedule,
)


def priced_file(tmp_path: Path, name: str = "1f1b", **more: Any) -> Path:
    path = tmp_path / "schedule.json"
    write_schedule(path, build(name, 4, 8))
    held = json.loads(path.read_text())
    stages = max(held["stage"]) + 1
    costs = {n: [1.0] * stages for n in ("forward_s", "input_gradient_s", "weight_gradient_s")}
    path.write_text(
        json.dumps(held | {"costs": costs | {"activation_bytes": [2.0] * stages}} | more)
    )
    return path


def test_a_schedule_beside_others(tmp_path: Path) -> None:
    priced = price(read_own(priced_file(tmp_path, memory_bytes=[8.0] * 4)))
    assert priced.timeline.step_s == 33.0
    assert priced.lower_bound_s == 27.0  # the weight gradients of ZB-H1 fill the drain
    assert priced.fits
    assert priced.beside["1f1b"].step_s == 33.0
    assert priced.beside["zb-h1"].step_s == 27.0
    assert priced.beside["gpipe"].peak_bytes == 16.0
    assert not priced.beside["gpipe"].fits
    assert "zb-v" not in priced.beside  # another number of stages
    assert "1f1b-stashed" not in priced.beside  # does not compute the same


@pytest.mark.parametrize("name", ["gpipe", "chimera", "interleaved", "zb-h2", "zb-v"])
def test_the_bound_holds(name: str, tmp_path: Path) -> None:
    priced = price(read_own(priced_file(tmp_path, name)))
    assert 0 < priced.lower_bound_s <= priced.timeline.step_s
    assert 0 <= priced.gap < 1


def test_asynchronous_schedules_have_no_bound(tmp_path: Path) -> None:
    assert price(read_own(priced_file(tmp_path, "1f1b-stashed"))).lower_bound_s == 0.0


def test_transfers_and_limits_come_from_the_file(tmp_path: Path) -> None:
    slow = {"latency_s": 1.0, "bandwidth_bytes_per_s": 5.0, "overlap": False}
    priced = price(read_own(priced_file(tmp_path, links=slow, memory_bytes=[1.0] * 4)))
    assert priced.timeline.step_s > 33.0
    assert not priced.fits
    assert 0 < priced.lower_bound_s <= priced.timeline.step_s  # of orders that need as much


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no costs": ({"costs": None}, "has no costs"),
    "an unknown cost": ({"costs": {"forward_s": [1, 1, 1, 1], "speed": [1]}}, "speed"),
    "a negative cost": ({"costs": {"forward_s": [1, -1, 1, 1]}}, "costs.forward_s[1]"),
    "costs of too few stages": ({"costs": {"forward_s": [1.0]}}, "are of 1 stages"),
    "unequal columns": (
        {"costs": {"forward_s": [1, 1, 1, 1], "weight_bytes": [1]}}, "give one for each stage",
    ),
    "no bandwidth": ({"links": {"bandwidth_bytes_per_s": 0}}, "bandwidth_bytes_per_s"),
    "a ragged table": ({"links": {"latency_s": [[1.0], [1.0, 2.0]]}}, "latency_s"),
    "memory of one device": ({"memory_bytes": [1.0]}, "has 1 numbers for 4 devices"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_costs_are_one_error(what: str, tmp_path: Path) -> None:
    more, message = BAD[what]
    with pytest.raises(PlanError) as caught:
        price(read_own(priced_file(tmp_path, **more)))
    assert message in str(caught.value)
    assert caught.value.remedy


def test_devices_that_recompute_are_named(tmp_path: Path) -> None:
    path = priced_file(tmp_path)
    held = json.loads(path.read_text())
    write_schedule(path, with_recomputation(build("1f1b", 4, 8), {1}))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"costs": held["costs"]}))
    priced = price(read_own(path))
    assert [priced.recomputes(d) for d in range(4)] == [False, True, False, False]


def test_shares_of_the_critical_path_add_up() -> None:
    timeline = simulate(build("1f1b", 4, 8), uniform(4))
    shares = timeline.critical_shares()
    assert sum(seconds for *_, seconds in shares) == timeline.step_s
    assert shares == sorted(shares, key=lambda row: (-row[2], row[0]))
