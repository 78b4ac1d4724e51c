"""One row of a sweep: a target planned for one combination, in whatever process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import costmodel
import planner

from ...inspect.sweep import DEVICES
from ..failure import failure_of
from ..notes import notes
from ..planned import planned
from ..platforms import choose_platform
from ..target import load_target
from .axes import Value, settled


def task_of(
    target: str, cluster: str, given: dict[str, Any], values: dict[str, Value]
) -> dict[str, Any]:
    """What a process needs to know to plan a row; plain data."""
    known = settled(values)
    arguments = {name: value for name, value in known.items() if name != DEVICES}
    swept = {name: v if isinstance(v, (int, float)) else str(v) for name, v in values.items()}
    return {
        "target": target, "cluster": cluster, "devices": known.get(DEVICES), "given": given,
        "arguments": arguments, "values": known | {"swept": swept}, "folder": str(Path.cwd()),
    }  # fmt: skip


def plan_row(task: dict[str, Any]) -> dict[str, Any]:
    """Plans a task; what goes wrong is part of the row."""
    try:
        if Path.cwd() != Path(task["folder"]):
            os.chdir(task["folder"])
        cluster, devices = task["cluster"], task["devices"]
        choose_platform(cluster, devices)
        if devices is not None:
            cluster = costmodel.parse_cluster(cluster, devices=devices)
        target = load_target(task["target"], task["arguments"])
        with notes():
            found = planned(task["target"], target, cluster, dict(task["given"]), lambda _: None)
    except (Exception, KeyboardInterrupt) as error:
        failure = failure_of(error)
        return {**task["values"], "fits": False, **failure.data, "status": failure.status}
    return {**task["values"], **_figures(found), "status": 0}


def _figures(found: planner.Plan) -> dict[str, Any]:
    said = found.summary()
    names = ("fits", "step_s", "peak_bytes", "limit_bytes", "gap", "stop", "mesh", "microbatches",
             "schedule", "cluster", "cached")  # fmt: skip
    glance, devices = said["at_a_glance"], found.cluster.num_devices
    return {name: said[name] for name in names} | {
        "device_seconds": devices * found.step_s, "stages": len(said["stages"]),
        "seconds": said["seconds"]["total"], "mfu": glance["mfu"],
        "examples_per_s": glance["examples_per_s"], "tokens_per_s": glance["tokens_per_s"],
        "dollars": glance["dollars"], "kwh": glance["kwh"],
    }  # fmt: skip
