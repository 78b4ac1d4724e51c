# pyright: basic
"""The predicted step adds up to the account; the trace says the same in Chrome's format."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import optax
import pytest

from planner import Plan, plan
from planner.inspect.timeline import COLLECTIVE, COMPUTE, TAKING, predicted
from planner.sharding.cost.account import account
from tests.planner.programs import BATCH, CASES, PARAMS, mean_loss, slow_machine

NAMES = ("branch", "captures", "constants", "gathers", "nested", "recomputed", "scanned", "sorts")


def plans() -> dict[str, Plan]:
    found = {
        name: plan(CASES[name].fn, *CASES[name].args, cluster=slow_machine(), baselines=False)
        for name in NAMES
    }
    found["training"] = plan(
        mean_loss, PARAMS, BATCH, cluster=slow_machine(), optimizer=optax.adam(1e-3),
        microbatches=2, mesh=(2, 4),
    )  # fmt: skip
    return found


PLANS: dict[str, Plan] = {}


@pytest.fixture(params=[*NAMES, "training"])
def one(request) -> Plan:
    if not PLANS:
        PLANS.update(plans())
    return PLANS[request.param]


def test_sums_are_those_of_the_account(one: Plan) -> None:
    analysed = one.analysed
    step, sums = predicted(analysed), account(analysed.decided)
    compute = math.fsum(e.seconds for e in step.events if e.lane == COMPUTE)
    moved = [e for e in step.events if e.lane == COLLECTIVE]
    assert sums.step_s == pytest.approx(one.step_s, rel=1e-12)  # rebuilt from the file alone
    assert compute == pytest.approx(sums.compute_s, rel=1e-9, abs=1e-15)
    assert math.fsum(e.seconds for e in moved) == pytest.approx(sums.communication_s, abs=1e-15)
    sent = math.fsum(c.bytes for c in sums.collectives)
    assert math.fsum(e.sent_bytes for e in moved) == pytest.approx(sent)
    taken = math.fsum(e.seconds for e in step.events if e.what == TAKING)
    assert taken == pytest.approx(sums.taking_s)
    if step.memory:
        assert max(held for _, held in step.memory) == sums.peak_bytes


def test_events_follow_each_other_in_program_order(one: Plan) -> None:
    step = predicted(one.analysed)
    for a, b in itertools.pairwise(step.events):
        assert b.start_s == pytest.approx(a.end_s)
        assert a.moment <= b.moment
    moments = [second for second, _ in step.memory]
    assert moments == sorted(set(moments))


def test_trace_is_in_the_format(one: Plan, tmp_path: Path) -> None:
    one.trace(tmp_path / "t.json")
    document = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    events = document["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    spans: dict[object, int] = {}
    for event in events:
        assert event["ph"] in "XCM"
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0
        assert all(math.isfinite(v) for v in event["args"].values() if isinstance(v, float))
        if event["ph"] == "X":
            track = event["pid"], event["tid"]
            assert track in named
            # Perfetto cuts to nanoseconds, and drops what overlaps on a track.
            start_ns, length_ns = int(event["ts"] * 1000), int(event["dur"] * 1000)
            assert length_ns > 0
            assert start_ns >= spans.get(track, 0)
            spans[track] = start_ns + length_ns
    ends = max(spans.values(), default=0)
    assert ends == pytest.approx(1e9 * (one.program.compute_s + one.program.communication_s), abs=1)
