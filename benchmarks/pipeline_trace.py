# pyright: basic
"""Overlap of the stages of a pipeline, from the profiler's trace of a step."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

STAGE = re.compile(r"jit_stage(\d+)_")


def traced(step: Callable[[], Any]) -> list[dict[str, Any]]:
    """Events of one step; operations name the program that they are of."""
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, create_perfetto_trace=True)
        jax.block_until_ready(step())
        jax.profiler.stop_trace()
        (path,) = Path(folder).rglob("perfetto_trace.json.gz")
        found = json.loads(gzip.decompress(path.read_bytes()))
    return found["traceEvents"] if isinstance(found, dict) else found


def at_once(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Seconds in which stages compute, and how many of them do while any does.

    Returns:
        busy_s of all stages together, any_s in which at least one is busy, both_s in which two or
        more are.
    """
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        name = STAGE.match(str(event.get("args", {}).get("hlo_module", "")))
        if event.get("ph") == "X" and name:
            spans[int(name[1])].append((event["ts"], event["ts"] + event["dur"]))
    edges = sorted(
        (at, change)
        for rows in spans.values() for a, b in _joined(rows) for at, change in ((a, 1), (b, -1))
    )  # fmt: skip
    busy = some = several = 0.0
    count, last = 0, 0.0
    for at, change in edges:
        busy += count * (at - last)
        some += (count > 0) * (at - last)
        several += (count > 1) * (at - last)
        count, last = count + change, at
    return {"busy_s": busy * 1e-6, "any_s": some * 1e-6, "both_s": several * 1e-6}


def _joined(rows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same moments as spans that do not overlap."""
    found: list[tuple[float, float]] = []
    for a, b in sorted(rows):
        if found and a <= found[-1][1]:
            found[-1] = found[-1][0], max(b, found[-1][1])
        else:
            found.append((a, b))
    return found
