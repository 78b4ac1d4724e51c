"""Runs a sweep: rows as they are done, kept in a file, shown as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

import profiles

from ...common.errors import PlanError
from ...common.units_text import bytes_text, dollars_text, seconds_text
from ...common.version import VERSION
from ...common.write_files import write_files
from ...inspect import sweep as sweeps  # its page loads what help does without
from ...inspect.sweep import DOES_NOT_FIT, FORMAT, FORMAT_VERSION, Sweep, advice
from ..answer import Answer, progress
from ..failure import INTERRUPTED, WRONG_USE
from ..platforms import choose_platform
from ..table import table
from ..target import load_target
from .axes import Axis, PerDevice, Value, combinations, parse_axes
from .local import local_rows
from .on_ray import ray_rows
from .row import task_of

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
    report: Path | None,
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
        report: file for a page with pictures.
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
    if report is not None:
        write_files([(report, sweeps.sweep_html(msgspec.convert(data, Sweep)).encode())])
    files = [str(path) for path in (output, report) if path is not None]
    written = f"\n\nwritten to {' and '.join(files)}" if files else ""
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
    for devices in dict.fromkeys(task["devices"] for task in tasks):
        choose_platform(cluster, devices)
    load_target(target, tasks[0]["arguments"])


def _data(
    target: str, cluster: str, axes: Sequence[Axis], rows: list[dict[str, Any]], *, complete: bool
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "format": FORMAT, "version": FORMAT_VERSION, "planner": VERSION, "target": target,
        "cluster": cluster, "complete": complete, "best": _best(rows),
        "sweep": {axis.name: [_plain(value) for value in axis.values] for axis in axes},
        "rows": [{k: v for k, v in row.items() if k != "status"} for row in rows],
    }  # fmt: skip
    said = advice(msgspec.convert(data, Sweep))
    return data | {"recommended": [msgspec.to_builtins(each) for each in said]}


def _plain(value: Value) -> int | float | str:
    return str(value) if isinstance(value, PerDevice) else value


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
    no = all(row["error"]["kind"] == DOES_NOT_FIT for row in rows)
    return NEGATIVE if no else WRONG_USE


def _shown_value(row: dict[str, Any], name: str) -> str:
    """A swept value; one per device beside what it comes to."""
    value, given = str(row[name]), str(row["swept"][name])
    return value if value == given else f"{value} ({given})"


def _failed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Why rows have no plan, each reason once with the first of its rows."""
    said: dict[str, str] = {}
    for row in rows:
        if not row["fits"]:
            first = ", ".join(f"{name}={value}" for name, value in row["swept"].items())
            said.setdefault(row["error"]["message"], first)
    return [f"{first}: {message}" for message, first in said.items()]


def _shown(axes: Sequence[Axis], data: dict[str, Any], ending: str) -> Callable[[int | None], Text]:
    names = [axis.name for axis in axes]
    priced = any(row["fits"] and row["dollars"] is not None for row in data["rows"])

    def cells(number: int, row: dict[str, Any]) -> list[str]:
        values = [_shown_value(row, name) for name in names]
        if not row["fits"]:
            no = "does not fit" if row["error"]["kind"] == DOES_NOT_FIT else "no plan"
            return [*values, *[""] * (len(head) - len(names) - 2), no, ""]
        mark = {k: "*" for k in ("step_s", "device_seconds") if data["best"][k] == number}
        mesh = " x ".join(f"{axis}={size}" for axis, size in row["mesh"].items())
        stages = f"{row['stages']} stages of " if row["stages"] > 1 else ""
        cost = [] if not priced else [dollars_text(1000 * row["dollars"])]
        return [
            *values, seconds_text(row["step_s"]) + mark.get("step_s", ""),
            bytes_text(row["peak_bytes"]),
            seconds_text(row["device_seconds"]) + mark.get("device_seconds", ""),
            *cost, f"{row['mfu']:.1%}" if row["mfu"] else "", stages + mesh,
            str(row["microbatches"]),
        ]  # fmt: skip

    cost = ["1,000 steps"] if priced else []
    head = [*names, "step", "memory", "device time", *cost, "MFU", "mesh", "micro-batches"]

    def text(width: int | None) -> Text:
        rows = [cells(k, row) for k, row in enumerate(data["rows"])]
        parts = [table(head, rows, width)] if rows else []
        if not data["complete"]:
            parts.append(Text("interrupted: finished rows are above", style="yellow"))
        if failed := _failed(data["rows"]):
            parts.append(Text("\n".join(failed)))
        if data["recommended"]:
            said = [each["sentence"] for each in data["recommended"]]
            parts.append(Text("\n".join(["recommended", *(f"  {text}" for text in said)])))
        about = "* the least; device time is devices times step"
        parts.append(Text(f"{about}{ending}", style="dim"))
        return Text("\n\n").join(parts)

    return text
