"""`meshwright simulate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import planner

from .. import result
from ..common.stop import Stop
from ..common.units_text import bytes_text, seconds_text
from ..pipeline import schedule as schedules
from .answer import Answer
from .formats import has_format
from .page import page
from .parameters import AsJson
from .table import table

SimulatePath = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN.JSON",
        help="A file that `plan -o` wrote, or a schedule of your own with its costs.",
    ),
]
MOST_SHOWN = 5


def simulate_command(path: SimulatePath, as_json: AsJson = False) -> Answer:
    """Price a plan again, or run a pipeline schedule on paper.

    A plan is priced by this version's cost model. A schedule is checked, simulated, and shown
    beside the published ones. Exit status: 0, 1 if it does not fit in memory, 2 if the file cannot
    be read or the schedule cannot run.
    """
    begun = time.monotonic()
    if has_format(path, schedules.user_file.FORMAT):
        return _schedule(path, begun)
    plan = planner.load(path)
    if plan.file.in_stages:
        return _stages(plan, path, begun)
    again = result.reprice.reprice(plan)
    data = again.summary() | {"seconds": _seconds(begun), "stored_step_s": plan.step_s}
    change = f"\n  in the file   {seconds_text(plan.step_s)}, {bytes_text(plan.peak_bytes)}"
    return Answer(data, lambda _: page(f"{again}{change}"), 0 if again.fits else 1)


def _stages(plan: planner.Plan, path: Path, begun: float) -> Answer:
    """A plan in stages: its schedule with the costs of its own stages."""
    priced = plan.simulated
    said = plan.summary()
    data = said | _summary(priced) | {
        "stages": said["stages"], "mesh": said["mesh"], "collectives": said["collectives"],
        "stored_step_s": plan.step_s,
        "schedules": {
            name: {"step_s": b.step_s, "peak_bytes": b.peak_bytes, "fits": b.fits}
            for name, b in priced.beside.items()
        },
        "baselines": said["baselines"], "name": str(path), "seconds": _seconds(begun),
    }  # fmt: skip
    return Answer(data, lambda width: _page(priced, str(path), width), 0 if priced.fits else 1)


def _seconds(begun: float) -> dict[str, float]:
    spent = dict.fromkeys(("trace", "substitute", "build", "solve", "inter"), 0.0)
    return spent | {"total": time.monotonic() - begun}


def _schedule(path: Path, begun: float) -> Answer:
    priced = schedules.price(schedules.user_file.read_own(path))
    data = _summary(priced) | {"name": str(path), "seconds": _seconds(begun)}
    return Answer(data, lambda width: _page(priced, str(path), width), 0 if priced.fits else 1)


def _summary(priced: schedules.Priced) -> dict[str, Any]:
    """The contract of `simulate --json`, which is that of `plan`, and what a schedule has more."""
    timeline = priced.timeline
    schedule = timeline.schedule
    stop = Stop.OPTIMAL if priced.gap <= 1e-9 else Stop.GAP
    return {
        "step_s": timeline.step_s, "peak_bytes": max(timeline.peak_bytes), "fits": priced.fits,
        "lower_bound_s": priced.lower_bound_s, "gap": priced.gap, "stop": stop.value, "mesh": {},
        "microbatches": schedule.microbatches, "schedule": schedule.name,
        "stages": [
            {"layers": list(schedule.placement.chunks_on(d)), "devices": [d, d + 1], "mesh": {},
             "step_s": float(timeline.busy_s[d]), "peak_bytes": timeline.peak_bytes[d],
             "recompute": "full" if priced.recomputes(d) else "none"}
            for d in range(schedule.devices)
        ],
        "baselines": {
            name: {"step_s": b.step_s, "peak_bytes": b.peak_bytes, "fits": b.fits}
            for name, b in priced.beside.items()
        },
        "collectives": [], "substitutions": [], "warnings": [],
        "bubble": timeline.bubble, "period_s": timeline.period_s,
        "critical_path": [
            {"what": what, "count": count, "seconds": seconds}
            for what, count, seconds in timeline.critical_shares()
        ],
    }  # fmt: skip


def _page(priced: schedules.Priced, name: str, width: int | None) -> Text:
    timeline = priced.timeline
    schedule = timeline.schedule
    head = (
        f"Schedule {schedule.name} of {name}\n"
        f"  step         {seconds_text(timeline.step_s)} simulated, {schedule.microbatches} "
        f"micro-batches on {schedule.devices} devices\n"
        f"  bubble       {timeline.bubble:.2%}; in a row of steps one each "
        f"{seconds_text(timeline.period_s)}\n"
        f"  memory       {bytes_text(max(timeline.peak_bytes))} peak"
        f"{'' if priced.fits else ', does not fit'}\n"
        f"  lower bound  {seconds_text(priced.lower_bound_s)}, gap {priced.gap:.2%}"
    )
    rows = [
        (what, str(count), seconds_text(seconds), f"{seconds / timeline.step_s:.1%}")
        for what, count, seconds in timeline.critical_shares()[:MOST_SHOWN]
    ]
    others = [
        (other, seconds_text(b.step_s), bytes_text(b.peak_bytes), "" if b.fits else "does not fit")
        for other, b in sorted(priced.beside.items(), key=lambda item: item[1].step_s)
    ]
    parts = [page(head), table(("critical path", "count", "time", "share"), rows, width)]
    if others:
        parts.append(table(("other schedules", "step", "memory", ""), others, width))
    return Text("\n\n").join(parts)
