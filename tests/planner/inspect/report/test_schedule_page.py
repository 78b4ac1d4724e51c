# pyright: basic
"""The page and trace of a schedule: a bar for every task, where the simulation puts it."""

from __future__ import annotations

import json

import pytest

from planner.inspect.perfetto import schedule_trace_json
from planner.inspect.report import schedule_html
from planner.inspect.report.lanes import lanes_of_schedule
from planner.pipeline.schedule import Links, build, price, simulate, uniform
from planner.pipeline.schedule.user_file import OwnSchedule
from tests.planner.inspect.report.test_report import Page

COSTS = uniform(
    4, forward_s=1e-3, input_gradient_s=1e-3, weight_gradient_s=1e-3, activation_bytes=1e6
)


@pytest.fixture(params=["gpipe", "1f1b", "zb-h1"])
def own(request) -> OwnSchedule:
    schedule = build(request.param, stages=4, microbatches=6)
    return OwnSchedule(schedule, COSTS, Links(latency_s=1e-5), (8e6,) * 4)


def test_lanes_are_the_simulation(own: OwnSchedule) -> None:
    timeline = simulate(own.schedule, COSTS, own.links)
    lanes = lanes_of_schedule(timeline)
    assert len(lanes) == 4
    assert sum(len(lane.spans) for lane in lanes) == own.schedule.size
    for lane, busy in zip(lanes, timeline.busy_s, strict=True):
        assert lane.busy_s == pytest.approx(float(busy))
    ends = max(s.start_s + s.seconds for lane in lanes for s in lane.spans)
    assert ends == pytest.approx(timeline.step_s)


def test_the_page_is_as_any_report(own: OwnSchedule) -> None:
    page = Page(schedule_html(price(own), "<b>own</b>.json", own.memory_bytes))
    assert not {tag for tag, _ in page.found} & {"script", "img", "b"}
    assert len(page.of("table")) == len(page.of("caption")) == 3
    drawn = [a for a in page.of("svg") if "device" in (a["aria-label"] or "")]
    assert len(drawn) == 4
    heights = {a["y"]: a["class"] for a in page.of("rect")}
    assert len(set(heights.values())) == len(heights)  # kinds are told apart by place, too


def test_the_trace_has_every_task(own: OwnSchedule) -> None:
    timeline = simulate(own.schedule, COSTS, own.links)
    events = json.loads(schedule_trace_json(timeline))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == own.schedule.size
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(1e6 * timeline.step_s)
    held = [e["args"]["held"] for e in events if e["ph"] == "C"]
    assert max(held) == max(timeline.peak_bytes)
