"""Spans of time in lanes: the step of one device, or a Gantt chart of a pipeline's stages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...common.units_text import seconds_text
from ...pipeline.schedule import Kind, Timeline
from ..timeline import COMPUTE, Predicted
from .markup import Markup, el

WIDTH = 1000.0  # of a lane; it is stretched to the page
FINEST = 0.6  # shorter spans of one label are drawn together


@dataclass(frozen=True, slots=True)
class Span:
    """From `start_s` on for `seconds`; `kind` chooses the colour, `label` is its text."""

    start_s: float
    seconds: float
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of spans."""

    name: str
    spans: tuple[Span, ...]

    @property
    def busy_s(self) -> float:
        return sum(span.seconds for span in self.spans)


def lanes_of_step(step: Predicted) -> tuple[Lane, ...]:
    """A lane of compute and one for each kind of collective."""
    kinds: dict[str, list[Span]] = {COMPUTE: []}
    for event in step.events:
        kind = COMPUTE if event.lane == COMPUTE else event.what
        over = f" over {'*'.join(event.axes)}" if event.axes else ""
        times = f", {event.count:g} times" if event.count != 1 else ""
        label = f"{event.what}{over}: {event.cause}{times}"
        kinds.setdefault(kind, []).append(Span(event.start_s, event.seconds, kind, label))
    return tuple(Lane(kind, tuple(spans)) for kind, spans in kinds.items())


def lanes_of_schedule(timeline: Timeline) -> tuple[Lane, ...]:
    """One lane for each device of a pipeline."""
    lanes: list[Lane] = []
    for device in range(timeline.schedule.devices):
        tasks, start, end = timeline.device(device)
        spans = tuple(
            Span(a, b - a, _SHOWN.get(task.kind, "transfer"), str(task))
            for task, a, b in zip(tasks, start.tolist(), end.tolist(), strict=True)
        )
        lanes.append(Lane(f"device {device}", spans))
    return tuple(lanes)


def draw_lanes(lanes: Iterable[Lane], end_s: float) -> Markup:
    """Lanes below each other with a common time axis."""
    rows = [_lane(lane, end_s) for lane in lanes]
    axis = el(
        "div",
        *(el("span", seconds_text(end_s * part / 4) if part else "0") for part in range(5)),
        class_="axis",
    )
    return el("div", *rows, el("div", axis, class_="lane"))


def _lane(lane: Lane, end_s: float) -> Markup:
    scale = WIDTH / end_s if end_s > 0 else 0.0
    rects = [
        el(
            "rect", el("title", f"{span.label} ({seconds_text(span.seconds)})"),
            x=span.start_s * scale, y=_PLACE.get(span.kind, (3, 20))[0],
            width=max(span.seconds * scale, 0.3), height=_PLACE.get(span.kind, (3, 20))[1],
            class_=f"k-{_known(span.kind)}",
        )
        for span in _merged(lane.spans, FINEST / scale if scale else 0.0)
    ]  # fmt: skip
    said = f"{lane.name}: {seconds_text(lane.busy_s)} of {seconds_text(end_s)}"
    drawn = el(
        "svg", *rects, view_box=f"0 0 {WIDTH:g} 26", preserve_aspect_ratio="none", role="img",
        aria_label=said,
    )  # fmt: skip
    return el("div", el("span", f"{lane.name}, {seconds_text(lane.busy_s)}"), drawn, class_="lane")


# What tasks of a schedule look like; their places in a lane tell them apart without colour.
_SHOWN = {
    Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.INPUT_GRADIENT: "backward",
    Kind.WEIGHT_GRADIENT: "weight",
}  # fmt: skip
_PLACE = {"forward": (3, 9), "backward": (14, 9), "weight": (9, 8)}  # top and height
_KINDS = frozenset(
    (
        "compute",
        "forward",
        "backward",
        "weight",
        "all-gather",
        "all-reduce",
        "reduce-scatter",
        "all-to-all",
        "collective-permute",
    )
)


def _known(kind: str) -> str:
    return kind if kind in _KINDS else "transfer"


def _merged(spans: tuple[Span, ...], least_s: float) -> list[Span]:
    """Spans too short to be seen are drawn with their neighbours."""
    found: list[Span] = []
    many = 1
    for span in spans:
        last = found[-1] if found else None
        near = last is not None and span.start_s - (last.start_s + last.seconds) < least_s
        if last is None or not near or (span.seconds >= least_s and last.seconds >= least_s):
            found.append(span)
            many = 1
            continue
        many += 1
        seconds = span.start_s + span.seconds - last.start_s
        found[-1] = Span(last.start_s, seconds, last.kind, f"{many} events, the last {span.label}")
    return found
