"""The predicted step in Chrome's trace format, which ui.perfetto.dev opens.

Source: Google, Trace Event Format (complete events "X", counters "C", metadata "M").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..files.plan_file import PlanFile
from ..pipeline.file_schedule import priced_of
from ..pipeline.schedule import Timeline
from .analysed_plan import AnalysedPlan
from .timeline import COMPUTE, Predicted, predicted

MICRO, NANO = 1e6, 1e9
# Readers cut microseconds down to whole nanoseconds: a quarter keeps them from falling one below.
QUARTER = 0.25


def trace_json(file: PlanFile, programs: Sequence[AnalysedPlan]) -> bytes:
    """The trace of a plan: of its one program as predicted, or of its stages as simulated.

    Args:
        file: the plan.
        programs: the search space around each of `file.programs`.
    """
    if not file.in_stages:
        return program_trace_json(programs[0], predicted(programs[0]))
    return schedule_trace_json(priced_of(file).timeline)


def program_trace_json(analysed: AnalysedPlan, step: Predicted) -> bytes:
    """The trace of one program: one process, threads for compute and collectives.

    Every device does the same, so it is written once, and named for all of them.
    """
    events: list[dict[str, Any]] = [
        _meta(
            "process_name",
            0,
            0,
            f"devices 0 to {analysed.cluster.num_devices - 1}, each: {analysed.program.name}",
        ),
        _meta("process_sort_index", 0, 0, 0),
    ]
    threads: dict[str, int] = {COMPUTE: 1}
    for event in step.events:
        lane = event.lane if event.lane == COMPUTE else "*".join(event.axes)
        if lane not in threads:
            threads[lane] = len(threads) + 1
        if span := _span(event.start_s, event.end_s):
            events.append(
                {
                    "ph": "X", "pid": 0, "tid": threads[lane], "name": event.what,
                    "cat": event.lane, **span,
                    "args": {
                        "cause": event.cause, "runs": event.count, "axes": list(event.axes),
                        "sent_bytes": event.sent_bytes,
                    },
                }
            )  # fmt: skip
    for lane, number in threads.items():
        name = COMPUTE if lane == COMPUTE else f"collectives over {lane}"
        events.append(_meta("thread_name", 0, number, name))
        events.append(_meta("thread_sort_index", 0, number, number))
    for second, held in step.memory:
        events.append(
            {"ph": "C", "pid": 0, "tid": 0, "name": "memory [byte]", "ts": second * MICRO,
             "args": {"held": held}}
        )  # fmt: skip
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "plan": analysed.program.name, "cluster": analysed.cluster.name,
            "mesh": ",".join(f"{axis}={size}" for axis, size in analysed.program.mesh),
            "step_s": analysed.program.step_s, "limit_bytes": analysed.program.limit_bytes,
        },
        "traceEvents": events,
    }  # fmt: skip
    return msgspec.json.encode(document)


def schedule_trace_json(timeline: Timeline) -> bytes:
    """The trace of a simulated schedule: one process for each device."""
    events: list[dict[str, Any]] = []
    for device in range(timeline.schedule.devices):
        events.append(_meta("process_name", device, 0, f"device {device}"))
        events.append(_meta("process_sort_index", device, 0, device))
        events.append(_meta("thread_name", device, 1, "tasks"))
        tasks, start, end = timeline.device(device)
        for task, a, b in zip(tasks, start.tolist(), end.tolist(), strict=True):
            if span := _span(a, b):
                events.append(
                    {"ph": "X", "pid": device, "tid": 1, "name": task.kind.word, "cat": COMPUTE,
                     **span, "args": {"task": str(task)}}
                )  # fmt: skip
        curve = timeline.memory[device]
        for second, held in zip(curve.time_s.tolist(), curve.held_bytes.tolist(), strict=True):
            events.append(
                {"ph": "C", "pid": device, "tid": 0, "name": "memory [byte]",
                 "ts": second * MICRO, "args": {"held": held}}
            )  # fmt: skip
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})


def _span(start_s: float, end_s: float) -> dict[str, float]:
    """Start and length in microseconds, both of whole nanoseconds; nothing if they are none.

    Perfetto drops a span that begins before the one ahead of it on its track has ended, and
    draws empty ones below each other, so neighbours share a rounded border.
    """
    start, end = round(start_s * NANO), round(end_s * NANO)
    if end == start:
        return {}
    return {"ts": (start + QUARTER) / 1e3, "dur": (end - start + QUARTER) / 1e3}


def _meta(name: str, process: int, thread: int, value: str | int) -> dict[str, Any]:
    key = "name" if isinstance(value, str) else "sort_index"
    return {"ph": "M", "pid": process, "tid": thread, "name": name, "args": {key: value}}
