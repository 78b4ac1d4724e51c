"""One row of a sweep: a target planned for one combination, in whatever process."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import planner

from ..failure import failure_of
from ..notes import notes
from ..planned import planned
from ..platforms import choose_platform
from ..target import load_target
from .axes import DEVICES

_NAME = re.compile(r"(?:\d+x)?(?P<device>[^:]+)(?::(?P<per_host>\d+))?")


def task_of(
    target: str, cluster: str, given: dict[str, Any], values: dict[str, Any]
) -> dict[str, Any]:
    """What a process needs to know to plan a row; plain data."""
    arguments = {name: value for name, value in values.items() if name != DEVICES}
    devices = values.get(DEVICES)
    machine = cluster if devices is None else with_devices(cluster, devices)
    return {
        "target": target, "cluster": machine, "given": given, "arguments": arguments,
        "values": values, "folder": str(Path.cwd()),
    }  # fmt: skip


def with_devices(cluster: str, devices: int) -> str:
    """The name of a cluster with another number of devices, hosts no larger than it."""
    match = _NAME.fullmatch(cluster)
    assert match is not None
    per_host = match["per_host"]
    ending = "" if per_host is None else f":{min(int(per_host), devices)}"
    return f"{devices}x{match['device']}{ending}"


def plan_row(task: dict[str, Any]) -> dict[str, Any]:
    """Plans a task; what goes wrong is part of the row."""
    try:
        if Path.cwd() != Path(task["folder"]):
            os.chdir(task["folder"])
        choose_platform(task["cluster"])
        target = load_target(task["target"], task["arguments"])
        with notes():
            found = planned(
                task["target"], target, task["cluster"], dict(task["given"]), lambda _: None
            )
    except (Exception, KeyboardInterrupt) as error:
        failure = failure_of(error)
        return {**task["values"], "fits": False, **failure.data, "status": failure.status}
    return {**task["values"], **_figures(found), "status": 0}


def _figures(found: planner.Plan) -> dict[str, Any]:
    said = found.summary()
    names = ("fits", "step_s", "peak_bytes", "limit_bytes", "gap", "stop", "mesh", "microbatches",
             "schedule", "cluster", "cached")  # fmt: skip
    devices = found.cluster.num_devices
    return {name: said[name] for name in names} | {
        "device_seconds": devices * found.step_s, "stages": len(said["stages"]),
        "seconds": said["seconds"]["total"],
    }  # fmt: skip
