"""`schedule`: the tasks of every device in order, for runtimes that execute a list (JaxPP).

Devices of a stage run one program. A task is a piece of computing between two collectives, or a
collective with the groups of devices that take part. A pipeline's stages are tables of
`planner.pipeline.schedule`, which has a file format of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ir import Mesh

from ..analysed_plan import AnalysedPlan
from ..timeline import COMPUTE, Event, predicted
from .record import Exported, Subject, json_bytes

FORMAT = "meshwright-tasks"


def schedule(subject: Subject) -> Exported:
    """The task list of a plan of one program."""
    analysed = subject.analysed
    mesh = analysed.decisions.mesh
    tasks = _tasks(analysed)
    used = sorted({tuple(task["axes"]) for task in tasks if task["task"] != COMPUTE})
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "devices": mesh.num_devices,
        "microbatches": analysed.program.microbatches,
        "groups": {"*".join(axes): groups(mesh, axes) for axes in used},
        "programs": [{"devices": list(range(mesh.num_devices)), "tasks": tasks}],
    }
    notes = (
        "tasks inside a loop are listed once with the number of their runs; its rounds interleave "
        "them",
    )
    return Exported(json_bytes(data), (), notes)


def _tasks(analysed: AnalysedPlan) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for event in predicted(analysed).events:
        last = found[-1] if found else None
        if event.lane != COMPUTE:
            found.append(_collective(event))
        elif last is not None and last["task"] == COMPUTE and last["runs"] == event.count:
            last["seconds"] += event.seconds
            last["places"].append(_place(analysed, event))
        else:
            found.append(
                {"task": COMPUTE, "runs": event.count, "seconds": event.seconds,
                 "places": [_place(analysed, event)]}
            )  # fmt: skip
    return found


def _collective(event: Event) -> dict[str, Any]:
    return {
        "task": event.what, "runs": event.count, "seconds": event.seconds,
        "axes": list(event.axes), "sent_bytes": event.sent_bytes, "cause": event.cause,
    }  # fmt: skip


def _place(analysed: AnalysedPlan, event: Event) -> str:
    return "/".join(map(str, analysed.flat.ops[event.op].place))


def groups(mesh: Mesh, axes: tuple[str, ...]) -> list[list[int]]:
    """Devices that take part together in a collective over some axes."""
    ids = np.arange(mesh.num_devices).reshape(mesh.sizes)
    order = [mesh.names.index(axis) for axis in axes]
    rest = [n for n in range(len(mesh.sizes)) if n not in order]
    return ids.transpose([*rest, *order]).reshape(-1, mesh.product(axes)).tolist()
