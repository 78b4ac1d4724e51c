# pyright: basic
"""Exports that describe a run, run: tasks without deadlock, traffic counted, strategies rebuilt."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from costmodel import parse_cluster
from planner.inspect.export.scaling import placements
from planner.inspect.report import is_heavy
from tests.planner.inspect.export import plans


def exported(kind: str, name: str, folder: Path) -> str:
    plans.PLANS[kind]().export(name, folder / "out")
    return (folder / "out").read_text(encoding="utf-8")


def play(data: dict) -> list[float]:
    """Every device runs its own list; a collective begins when its whole group is there."""
    lists = {d: list(p["tasks"]) for p in data["programs"] for d in p["devices"]}
    now = dict.fromkeys(lists, 0.0)
    at = dict.fromkeys(lists, 0)
    moved = True
    while moved:
        moved = False
        for device, tasks in lists.items():
            while at[device] < len(tasks):
                task = tasks[at[device]]
                group = [device]
                if task["task"] != "compute":
                    rows = data["groups"]["*".join(task["axes"])]
                    group = next(row for row in rows if device in row)
                    here = [lists[d][at[d]] if at[d] < len(lists[d]) else None for d in group]
                    if any(other is None or other != task for other in here):
                        break
                start = max(now[d] for d in group)
                for d in group:
                    now[d] = start + task["seconds"]
                    at[d] += 1
                moved = True
    assert all(at[d] == len(tasks) for d, tasks in lists.items()), "deadlock"
    return list(now.values())


@pytest.mark.parametrize("kind", plans.PLANS)
def test_tasks_run_to_the_end_in_the_predicted_time(kind: str, tmp_path: Path) -> None:
    data = json.loads(exported(kind, "schedule", tmp_path))
    file = plans.PLANS[kind]().program
    assert len(data["programs"][0]["devices"]) == data["devices"]
    for groups in data["groups"].values():
        assert sorted(d for row in groups for d in row) == list(range(data["devices"]))
    for end in play(data):
        assert end == pytest.approx(file.compute_s + file.communication_s, rel=1e-9)


@pytest.mark.parametrize("kind", plans.PLANS)
def test_traffic_adds_up(kind: str, tmp_path: Path) -> None:
    found = plans.PLANS[kind]()
    data = json.loads(exported(kind, "traffic", tmp_path))
    sent = math.fsum(c.bytes for c in found.collectives)
    assert math.fsum(r["bytes_per_device"] for r in data["phases"]) == pytest.approx(sent)
    total = math.fsum(data["total_bytes_by_level"].values())
    assert total == pytest.approx(sent * data["devices"])
    table = np.zeros((data["devices"],) * 2)
    for a, b, count in data["pairs"]:
        table[a, b] = count
    assert table.sum() == pytest.approx(total)
    np.testing.assert_allclose(table.sum(0), sent)  # each device sends and receives alike
    np.testing.assert_allclose(table.sum(1), sent)


def test_phases_of_a_training_step(tmp_path: Path) -> None:
    data = json.loads(exported("tensor-parallel", "traffic", tmp_path))
    rows = {(r["phase"], r["kind"]): r["count"] for r in data["phases"]}
    # Megatron: one all-reduce of the output forward; the input is not trained, so none backward.
    assert rows.get(("forward", "all-reduce"), 0) + rows.get(("forward", "reduce-scatter"), 0) >= 1
    assert not any(phase == "update" for phase, _ in rows)


def read_strategies(text: str) -> dict[str, tuple[list[int], list[int]]]:
    """The file as FlexFlow's loader takes it: words in order."""
    words = iter(text.split())
    found = {}
    for _ in range(int(next(words))):
        name, kind, dims = next(words), int(next(words)), int(next(words))
        assert kind == 0
        parts = [int(next(words)) for _ in range(dims)]
        count = int(next(words))
        assert count == math.prod(parts)
        assert name not in found
        found[name] = parts, [int(next(words)) for _ in range(count)]
    assert next(words, None) is None
    return found


@pytest.mark.parametrize("kind", plans.PLANS)
def test_strategies_put_every_piece_where_the_plan_does(kind: str, tmp_path: Path) -> None:
    found = plans.PLANS[kind]()
    analysed, mesh = found.analysed, found.mesh
    strategies = read_strategies(exported(kind, "flexflow", tmp_path))
    heavy = [i for i in analysed.built.op_node if is_heavy(analysed.flat.ops[i])]
    assert len(strategies) == len(heavy)
    places = np.array(list(np.ndindex(*mesh.sizes)))
    for i in heavy:
        op, node = analysed.flat.ops[i], analysed.built.op_node[i]
        state = analysed.built.refs[node].menu[analysed.choice[node]].results[0]
        parts, ids = strategies[f"{op.node.op}@{'/'.join(map(str, op.place))}"]
        grid = np.array(ids).reshape(parts[::-1])  # innermost fastest
        for part in np.ndindex(*grid.shape):
            coordinates = dict(zip(mesh.names, places[grid[part]], strict=True))
            for axes, index in zip(state.dims, part, strict=False):
                at = 0
                for axis in axes:
                    at = at * mesh.size(axis) + int(coordinates[axis])
                assert at == index


def test_scaling_has_every_placement(tmp_path: Path) -> None:
    data = json.loads(exported("layered", "scaling", tmp_path))
    rows = {(r["devices"], r["placement"]): r for r in data["rows"]}
    assert {n for n, _ in rows} == {1, 2, 4, 8}
    fast = [rows[n, "packed"]["step_s"] for n in (1, 2, 4, 8)]
    assert fast == sorted(fast, reverse=True)  # devices so slow that splitting always pays
    whole = plans.layered().step_s
    assert rows[8, "packed"]["step_s"] <= whole * (1 + 1e-9)  # its mesh was pinned, this one is not
    for row in rows.values():
        assert row["device_seconds"] == pytest.approx(row["step_s"] * row["devices"])


def test_placements_fill_hosts() -> None:
    cluster = parse_cluster("16xh100:4")
    found = [(p, c.num_devices, c.num_hosts) for p, c in placements(cluster)]
    assert found == [
        ("packed", 1, 1), ("packed", 2, 1), ("spread", 2, 2), ("packed", 4, 1), ("spread", 4, 4),
        ("packed", 8, 2), ("spread", 8, 4), ("packed", 16, 4),
    ]  # fmt: skip
    assert all(c.island <= c.devices_per_host for p, c in placements(cluster) if p == "spread")
