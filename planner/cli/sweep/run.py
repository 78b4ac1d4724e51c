"""Runs a sweep: rows as they are done, kept in a file, shown as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

import costmodel
import profiles

from ...common.errors import PlanError
from ...common.units_text import bytes_text, seconds_text
from ...common.version import VERSION
from ...common.write_files import write_files
from ..answer import Answer, progress
from ..failure import INTERRUPTED, WRONG_USE
from ..platforms import choose_platform
from ..table import table
from ..target import load_target
from .axes import DEVICES, Axis, combinations, parse_axes
from .local import local_rows
from .on_ray import ray_rows
from .row import task_of

FORMAT = "meshwright-sweep"
FILES = (".yaml", ".yml", ".json")
NEGATIVE = 1


def sweep(
    target: str,
    cluster: str,
    given: dict[str, Any],
    texts: Sequence[str],
    *,
    jobs: int | None,
    ray: str | None,
    output: Path | None,
    as_json: bool,
) -> Answer:
    """Plans a target for every combination of some values.

    Args:
        target: its function takes the swept names as keyword arguments, but for `devices`.
        cluster: whose number of devices is replaced.
        given: options of the plans.
        texts: what is swept.
        jobs: processes at once; one for each core if None.
        ray: address of a Ray cluster to use instead.
        output: file for the rows; written again after each of them.
        as_json: whether progress is shown.

    Raises:
        PlanError: if nothing can be planned as asked.
    """
    axes = parse_axes(texts)
    tasks = [task_of(target, cluster, given, values) for values in combinations(axes)]
    _check(target, cluster, axes, tasks, jobs)
    rows: dict[int, dict[str, Any]] = {}
    source = local_rows(tasks, jobs or profiles.cores()) if ray is None else ray_rows(tasks, ray)
    data: dict[str, Any] = {}

    def note() -> None:
        kept = [rows[k] for k in sorted(rows)]
        data.update(_data(target, cluster, axes, kept, complete=len(rows) == len(tasks)))
        if output is not None:
            text = json.dumps(data, indent=1) + "\n"
            write_files([(output, text.encode())])

    interrupted = False
    with progress(as_json=as_json) as say:
        try:
            with source as found:
                note()
                say(f"0 of {len(tasks)} planned")
                for number, row in found:
                    rows[number] = row
                    note()
                    say(f"{len(rows)} of {len(tasks)} planned")
        except KeyboardInterrupt:
            if not data:
                raise
            interrupted = True
    written = f"\n\nwritten to {output}" if output is not None else ""
    status = INTERRUPTED if interrupted else _status(data["rows"])
    return Answer(data, _shown(axes, data, written), status)


def _check(
    target: str,
    cluster: str,
    axes: Sequence[Axis],
    tasks: Sequence[dict[str, Any]],
    jobs: int | None,
) -> None:
    """What would be wrong with every row is said once, before any is planned."""
    if jobs is not None and jobs < 1:
        raise PlanError(
            f"must be at least 1, got {jobs}", kind="bad-option", where="--jobs",
            remedy="leave it out for one process for each core",
        )  # fmt: skip
    if Path(cluster).suffix in FILES and DEVICES in {axis.name for axis in axes}:
        raise PlanError(
            "the number of devices of a cluster file cannot be swept", kind="bad-option",
            where="--sweep", remedy="name the cluster, such as 64xh100:8, or leave devices out",
        )  # fmt: skip
    choose_platform(cluster)
    for name in {task["cluster"] for task in tasks}:
        costmodel.parse_cluster(name)
    load_target(target, tasks[0]["arguments"])


def _data(
    target: str, cluster: str, axes: Sequence[Axis], rows: list[dict[str, Any]], *, complete: bool
) -> dict[str, Any]:
    return {
        "format": FORMAT, "version": 1, "planner": VERSION, "target": target, "cluster": cluster,
        "sweep": {axis.name: list(axis.values) for axis in axes}, "complete": complete,
        "rows": [{k: v for k, v in row.items() if k != "status"} for row in rows],
        "best": _best(rows),
    }  # fmt: skip


def _best(rows: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """Numbers of the rows with the shortest step and the fewest device-seconds."""
    fitting = [k for k, row in enumerate(rows) if row["fits"]]
    return {
        name: min(fitting, key=lambda k: rows[k][name], default=None)
        for name in ("step_s", "device_seconds")
    }


def _status(rows: Sequence[dict[str, Any]]) -> int:
    if any(row["fits"] for row in rows):
        return 0
    no = all(row["error"]["kind"] == "does-not-fit" for row in rows)
    return NEGATIVE if no else WRONG_USE


def _shown(axes: Sequence[Axis], data: dict[str, Any], ending: str) -> Callable[[int | None], Text]:
    names = [axis.name for axis in axes]

    def cells(number: int, row: dict[str, Any]) -> list[str]:
        values = [str(row[name]) for name in names]
        if not row["fits"]:
            return [*values, row["error"]["message"], "", "", "", ""]
        mark = {k: "*" for k in ("step_s", "device_seconds") if data["best"][k] == number}
        mesh = " x ".join(f"{axis}={size}" for axis, size in row["mesh"].items())
        stages = f"{row['stages']} stages of " if row["stages"] > 1 else ""
        return [
            *values, seconds_text(row["step_s"]) + mark.get("step_s", ""),
            bytes_text(row["peak_bytes"]),
            seconds_text(row["device_seconds"]) + mark.get("device_seconds", ""),
            stages + mesh, str(row["microbatches"]),
        ]  # fmt: skip

    head = [*names, "step", "memory", "device time", "mesh", "micro-batches"]

    def text(width: int | None) -> Text:
        rows = [cells(k, row) for k, row in enumerate(data["rows"])]
        parts = [table(head, rows, width)] if rows else []
        if not data["complete"]:
            parts.append(Text("interrupted: finished rows are above", style="yellow"))
        parts.append(Text(f"* the least; device time is devices times step{ending}", style="dim"))
        return Text("\n\n").join(parts)

    return text
