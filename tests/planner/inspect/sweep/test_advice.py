"""How many devices a sweep recommends, and its page, from steps that are made up."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.common.errors import PlanError
from planner.inspect.sweep import Sweep, advice, lines_of, read_sweep, sweep_html
from planner.inspect.sweep.advice import WORTH
from planner.inspect.sweep.draw import _marks  # pyright: ignore[reportPrivateUsage]
from tests.planner.inspect.report.test_report import Page

Steps = dict[int, float | None]
NO = {"kind": "does-not-fit", "message": "needs <b>more</b> memory"}


def swept(lines: dict[str, Steps], dollars: float | None = None) -> Sweep:
    """A sweep over devices and batch: seconds of each step, None where nothing fits."""
    rows = [
        {
            "swept": {"devices": devices, "batch": batch}, "fits": step_s is not None,
            "step_s": step_s, "device_seconds": step_s and devices * step_s, "mfu": 0.4,
            "dollars": dollars, "mesh": {"x": devices}, "error": None if step_s else NO,
        }
        for batch, steps in lines.items() for devices, step_s in steps.items()
    ]  # fmt: skip
    devices = sorted({n for steps in lines.values() for n in steps})
    raw = {
        "format": "meshwright-sweep", "version": 2, "planner": "0", "target": "m.py:f",
        "cluster": "8xh100", "sweep": {"devices": devices, "batch": list(lines)},
        "complete": True, "rows": rows,
    }  # fmt: skip
    return msgspec.convert(raw, Sweep)


def test_the_sentence_states_its_basis() -> None:
    (found,) = advice(swept({"64": {4: None, 8: 1.0, 16: 0.5, 32: 0.3, 64: 0.25}}))
    assert found.devices == 32
    share = (1 / 0.3 / 32) / (1 / 8)
    assert f"{share:.0%} of the speed per device of 8" in found.sentence
    assert f"64 would be {0.3 / 0.25:.2f} times as fast" in found.sentence
    assert "fewer than 8 do not fit" in found.sentence


def test_a_batch_for_each_device_is_judged_by_the_work_done() -> None:
    steps: Steps = {8: 1.0, 16: 1.1, 32: 1.6}
    fixed, grown = advice(swept({"64": steps, "4/device": steps}))
    assert fixed.devices == 8
    assert grown.devices == 16
    assert f"32 would be {2 * 1.1 / 1.6:.2f} times as fast" in grown.sentence
    assert [line.grows for line in lines_of(swept({"64": steps, "4/device": steps}))] == [
        False, True,
    ]  # fmt: skip


def test_nothing_fits_and_everything_is_worth_it() -> None:
    no, all_of_them = advice(swept({"1": {8: None}, "2": {8: 2.0, 16: 1.0}}))
    assert no.devices is None
    assert "no number of devices that was planned fits" in no.sentence
    assert all_of_them.devices == 16
    assert "the most that were planned" in all_of_them.sentence


@given(st.dictionaries(st.integers(1, 4096), st.floats(1e-6, 1e6), min_size=1, max_size=8))
def test_up_to_the_number_recommended_every_doubling_is_worth_it(steps: dict[int, float]) -> None:
    (found,) = advice(swept({"64": {**steps}}))
    order = sorted(steps)
    worth = [steps[a] / steps[b] >= WORTH ** math.log2(b / a) for a, b in itertools.pairwise(order)]
    first_bad = worth.index(False) if False in worth else len(worth)
    assert found.devices == order[first_bad]


@given(st.floats(1e-9, 1e9), st.floats(1.0, 1e6), st.booleans())
def test_marks_of_an_axis_enclose_its_figures(low: float, times: float, logarithmic: bool) -> None:
    marks = _marks(low, low * times, logarithmic=logarithmic)
    assert marks[-1] >= low * times * (1 - 1e-6)
    assert marks[0] == 0.0 if not logarithmic else marks[0] <= low * (1 + 1e-6)
    assert list(marks) == sorted(set(marks))
    assert len(marks) <= (6 if not logarithmic else 4 + 3 * math.log10(times))


def test_the_page_draws_every_row(tmp_path: Path) -> None:
    lines: dict[str, Steps] = {"<64>": {4: None, 8: 1.0, 16: 0.5}, "4/device": {8: 1.0, 16: 1.2}}
    sweep = swept(lines, dollars=1e-3)
    page = Page(sweep_html(sweep))
    assert not {tag for tag, _ in page.found} & {"script", "img", "b"}
    assert len(page.of("svg")) == 3  # time, dollars, MFU
    assert len(page.of("circle")) == 3 * 4
    crosses = [a for a in page.of("path") if "l6 6" in (a.get("d") or "")]
    assert len(crosses) == 3
    assert "Cost of 1,000 steps" in sweep_html(sweep)
    assert "Device time of a step" in sweep_html(swept(lines))
    nothing = sweep_html(swept({"1": {8: None}}))
    assert "nothing to draw" in nothing


def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    good = msgspec.to_builtins(swept({"1": {8: 1.0}}))
    path.write_bytes(msgspec.json.encode(good))
    assert read_sweep(path) == swept({"1": {8: 1.0}})
    row = good["rows"][0]
    for change in (
        {"version": 1}, {"rows": [row | {"step_s": None}]}, {"rows": [row | {"swept": {"a": 1}}]},
        {"rows": [row | {"step_s": -1.0}]},
    ):  # fmt: skip
        path.write_bytes(msgspec.json.encode(good | change))
        with pytest.raises(PlanError, match="no sweep of this version"):
            read_sweep(path)
