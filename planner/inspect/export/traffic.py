"""`traffic`: bytes by link and phase of a step, and from device to device.

Every collective is counted on a ring over its group: each device sends to the next. Groups and
rings follow the plan's mesh, whose devices are numbered host by host.
"""

from __future__ import annotations

from typing import Any

from ..analysed_plan import AnalysedPlan
from ..phases import phases
from ..timeline import COLLECTIVE, Event, predicted
from .record import Exported, Subject, json_bytes
from .schedule import groups

FORMAT = "meshwright-traffic"
MOST_DEVICES = 1024  # more devices have no table of pairs


def traffic(subject: Subject) -> Exported:
    """Traffic of one step."""
    analysed = subject.analysed
    step, phase_of = predicted(analysed), phases(analysed)
    levels = {"host": 0.0, "domain": 0.0, "network": 0.0}
    rows: dict[tuple[str, str, tuple[str, ...]], list[float]] = {}
    pairs: dict[tuple[int, int], float] = {}
    for event in step.events:
        if event.lane != COLLECTIVE:
            continue
        phase = phase_of.get(event.op, "other")
        row = rows.setdefault((phase, event.what, event.axes), [0.0, 0.0, 0.0])
        row[0] += event.sent_bytes
        row[1] += event.count
        row[2] += event.seconds
        for a, b in _ring(analysed, event):
            levels[_level(analysed, a, b)] += event.sent_bytes
            if analysed.cluster.num_devices <= MOST_DEVICES:
                pairs[a, b] = pairs.get((a, b), 0.0) + event.sent_bytes
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "devices": analysed.cluster.num_devices,
        "devices_per_host": analysed.cluster.devices_per_host,
        "domain": analysed.cluster.domain,
        "step_s": analysed.program.step_s,
        "total_bytes_by_level": levels,
        "phases": [
            {"phase": phase, "kind": kind, "axes": list(axes), "bytes_per_device": sent,
             "count": count, "seconds": seconds}
            for (phase, kind, axes), (sent, count, seconds) in sorted(rows.items())
        ],
        "pairs": [[a, b, sent] for (a, b), sent in sorted(pairs.items())],
    }  # fmt: skip
    notes = ["collectives are counted as rings; trees and all-to-alls send to other pairs"]
    if analysed.cluster.num_devices > MOST_DEVICES:
        notes.append(f"pairs are left out: there are more than {MOST_DEVICES} devices")
    return Exported(json_bytes(data), (), tuple(notes))


def _ring(analysed: AnalysedPlan, event: Event) -> list[tuple[int, int]]:
    """Each device and the next of its group."""
    return [
        pair
        for group in groups(analysed.decisions.mesh, event.axes)
        for pair in zip(group, [*group[1:], group[0]], strict=True)
    ]


def _level(analysed: AnalysedPlan, a: int, b: int) -> str:
    cluster = analysed.cluster
    if a // cluster.devices_per_host == b // cluster.devices_per_host:
        return "host"
    return "domain" if a // cluster.island == b // cluster.island else "network"
