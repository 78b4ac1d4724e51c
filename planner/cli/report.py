"""`meshwright report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import planner

from .. import inspect
from ..common.errors import PlanError
from ..common.write_files import write_files
from ..pipeline import schedule as schedules
from . import wishes
from .answer import Answer, progress
from .formats import has_format
from .parameters import AsJson, PlanPath

ReportPath = Annotated[
    Path, typer.Option("--output", "-o", metavar="PLAN.HTML", help="Write the report to this file.")
]
TracePath = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="TRACE.JSON",
        help="Also write the predicted step as a trace for ui.perfetto.dev.",
    ),
]  # fmt: skip


def report_command(
    path: PlanPath, output: ReportPath, trace: TracePath = None, as_json: AsJson = False
) -> Answer:
    """Write a plan as one HTML page: what is split how, where time and memory go.

    A pipeline schedule of your own, as `simulate` takes it, becomes a Gantt chart; the file of a
    sweep becomes pictures of time, cost and MFU.

    The page needs no network and no script. Exit status: 0, or 2 if the plan cannot be read or
    the page not be written.
    """
    outputs = [output] if trace is None else [output, trace]
    for each in outputs:
        wishes.check_writable(each)
    with progress(as_json=as_json) as say:
        say("report")
        if has_format(path, schedules.user_file.FORMAT):
            _schedule(path, output, trace)
        elif has_format(path, inspect.sweep.FORMAT):
            _sweep(path, output, trace)
        else:
            found = planner.load(path)
            found.report(output)
            if trace is not None:
                found.trace(trace)
    files = [str(each) for each in outputs]
    return Answer({"files": files}, lambda _: Text(f"written to {' and '.join(files)}"))


def _schedule(path: Path, output: Path, trace: Path | None) -> None:
    """The same for a schedule."""
    own = schedules.user_file.read_own(path)
    priced = schedules.price(own)
    page = inspect.report.schedule_html(priced, path.name, own.memory_bytes).encode()
    files = (
        [] if trace is None else [(trace, inspect.perfetto.schedule_trace_json(priced.timeline))]
    )
    write_files([*files, (output, page)])


def _sweep(path: Path, output: Path, trace: Path | None) -> None:
    """The same for a sweep, which has no trace."""
    if trace is not None:
        raise PlanError(
            "a sweep has no trace", kind="bad-option", where="--trace",
            remedy="leave it out, or name the plan of one combination",
        )  # fmt: skip
    page = inspect.sweep.sweep_html(inspect.sweep.read_sweep(path)).encode()
    write_files([(output, page)])
