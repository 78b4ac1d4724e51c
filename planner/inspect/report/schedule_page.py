"""A pipeline schedule as one HTML file: Gantt chart, memory of each device, critical path."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...common.units_text import bytes_text, seconds_text
from ...pipeline.schedule import Priced, Timeline
from .lanes import draw_lanes, lanes_of_schedule
from .markup import Markup, bar, el, join, table
from .page import document
from .plots import draw_memory

MOST_LANES = 64
MOST_CURVES = 8


def schedule_html(priced: Priced, name: str, memory_bytes: Sequence[float]) -> str:
    """The report of a simulated schedule.

    Args:
        priced: the schedule with its simulation.
        name: name of the file.
        memory_bytes: limit of each device; empty for none.
    """
    timeline = priced.timeline
    schedule = timeline.schedule
    title = f"Schedule {schedule.name} of {name}"
    parts = {
        "Gantt": gantt(timeline),
        "Memory": memory(timeline, memory_bytes),
        "Devices": devices(timeline, memory_bytes),
        "What decides": critical(timeline),
        "Other schedules": others(priced),
    }
    tiles = [
        ("Step time, simulated", seconds_text(timeline.step_s),
         f"{seconds_text(timeline.period_s)} each in a row of steps"),
        ("Idle", f"{timeline.bubble:.2%}", "of the devices' time in a step"),
        ("Peak memory", bytes_text(max(timeline.peak_bytes)),
         "fits" if priced.fits else "does not fit"),
        ("Gap to the lower bound", f"{priced.gap:.2%}",
         f"bound {seconds_text(priced.lower_bound_s)}"),
        ("Micro-batches", str(schedule.microbatches), f"on {schedule.devices} devices"),
    ]  # fmt: skip
    about = f"{schedule.size} tasks in all. Times are simulated from the costs in the file."
    return document(title, tiles, parts, about)


def gantt(timeline: Timeline) -> Markup:
    """The tasks of every device over time."""
    lanes = lanes_of_schedule(timeline)
    more = len(lanes) - MOST_LANES
    about = (
        "One lane for each device, which may be a whole group. Forwards fill the upper half of a "
        "lane, backwards and gradients of inputs the lower half, gradients of weights the middle; "
        "everything else (recomputation, updates, transfers) its whole height. Point at a bar to "
        "read the task."
    )
    return join(
        [
            el("p", about), draw_lanes(lanes[:MOST_LANES], timeline.step_s),
            el("p", f"{more} more devices are not drawn.", class_="soft") if more > 0 else None,
        ]
    )  # fmt: skip


def memory(timeline: Timeline, memory_bytes: Sequence[float]) -> Markup:
    """What the first devices hold over time, below their limits [byte]."""
    drawn: list[Markup] = []
    for device, curve in enumerate(timeline.memory[:MOST_CURVES]):
        points = list(zip(curve.time_s.tolist(), curve.held_bytes.tolist(), strict=True))
        limit = float(memory_bytes[device]) if memory_bytes else None
        drawn.append(el("h3", f"Device {device}"))
        drawn.append(draw_memory(points, timeline.step_s, limit, points[0][1] if points else 0.0))
    more = len(timeline.memory) - MOST_CURVES
    if more > 0:
        drawn.append(el("p", f"{more} more devices are not drawn.", class_="soft"))
    return join(drawn)


def devices(timeline: Timeline, memory_bytes: Sequence[float]) -> Markup:
    """A row for each device."""
    rows = [
        (
            str(d), ", ".join(map(str, timeline.schedule.placement.chunks_on(d))),
            seconds_text(float(timeline.busy_s[d])),
            bar(float(timeline.busy_s[d]) / timeline.step_s if timeline.step_s else 0.0),
            bytes_text(timeline.peak_bytes[d]),
            bytes_text(float(memory_bytes[d])) if memory_bytes else "none",
        )
        for d in range(timeline.schedule.devices)
    ]  # fmt: skip
    head = ("device", "chunks", "busy", "share of the step", "peak memory", "limit")
    return table("Devices of the schedule", head, list(rows), numeric="  n nn")


def critical(timeline: Timeline) -> Markup:
    """What the step waits for."""
    rows = [
        (what, str(count), seconds_text(seconds), bar(seconds / timeline.step_s))
        for what, count, seconds in timeline.critical_shares()
    ]
    head = ("on the critical path", "count", "time", "share of the step")
    return table("What the step waits for", head, list(rows), numeric=" nn")


def others(priced: Priced, planned: Collection[str] = ()) -> Markup:
    """Published schedules with the same costs.

    Args:
        priced: a schedule with those beside it.
        planned: names of schedules that a plan may use, to mark them; None for no mark.
    """
    if not priced.beside:
        return el("p", "No published schedule takes these stages and devices.")
    ranked = sorted(priced.beside.items(), key=lambda item: item[1].step_s)
    rows = [
        (name, seconds_text(b.step_s), bytes_text(b.peak_bytes), "yes" if b.fits else "no")
        + ((("yes" if name in planned else "no"),) if planned else ())
        for name, b in ranked
    ]
    head = ("schedule", "step", "peak memory", "fits", *(("may be planned",) if planned else ()))
    return table("Published schedules with the same costs", head, list(rows), numeric=" nn")
