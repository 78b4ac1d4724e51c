"""`meshwright plan --sweep`: rows are those of single plans, whatever plans them."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import PlanError
from planner.cli.sweep.axes import Axis, PerDevice, combinations, parse_axes, settled
from tests.planner.cli.runner import Run
from tests.planner.cli.test_process import PROGRAM, environment

SWEEP = ("plan", "step.py:sized", "-c", "8xh100", "--no-baselines")
SOME = ("--sweep", "devices=2..4,batch=16,32")


# --- what is swept ------------------------------------------------------------------------------


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_range_doubles(first: int, last: int) -> None:
    text = f"devices={first}..{last}"
    if first > last:
        with pytest.raises(PlanError, match="down to"):
            parse_axes([text])
        return
    (axis,) = parse_axes([text])
    assert axis.values[0] == first
    sizes = [value for value in axis.values if isinstance(value, int)]
    assert len(sizes) == len(axis.values)
    assert all(b == 2 * a for a, b in itertools.pairwise(sizes))
    assert last / 2 < sizes[-1] <= last


def test_axes_and_values() -> None:
    both = parse_axes(["devices=8..32,batch=64,1e-3,word", "rate=.5"])
    assert both == (
        Axis("devices", (8, 16, 32)), Axis("batch", (64, 1e-3, "word")), Axis("rate", (0.5,)),
    )  # fmt: skip
    assert list(combinations(parse_axes(["a=1,2,b=x,y"]))) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", "8", "=8", "devices=", "devices=8,", "devices=a", "devices=0", "devices=-8", "devices=1.5",
     "devices=8..4", "a=1,a=2", "a=1,1", "a-b=1", "batch=4/device",
     "devices=8,batch=x/device", "devices=8/device", "a=1..100000,b=1..1000000,c=1..100000"],
)  # fmt: skip
def test_what_cannot_be_swept(text: str) -> None:
    with pytest.raises(PlanError) as found:
        parse_axes([text] if "c=" not in text else [text, "d=" + ",".join(map(str, range(99)))])
    assert found.value.where == "--sweep"


def test_values_per_device_grow_with_the_devices() -> None:
    axes = parse_axes(["devices=8,16,batch=2..4/device,rate=.5"])
    assert axes[1] == Axis("batch", (PerDevice(2), PerDevice(4)))
    found = [settled(values) for values in combinations(axes)]
    assert [row["batch"] for row in found] == [16, 32, 32, 64]


# --- rows ---------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_rows_are_those_of_single_plans(run: Run, tmp_path: Path) -> None:
    answer = run(*SWEEP, *SOME, "-o", "sweep.json", "--json", "-j", "2").answer
    assert answer["complete"] is True
    rows = answer["rows"]
    assert [(row["devices"], row["batch"]) for row in rows] == [(2, 16), (2, 32), (4, 16), (4, 32)]
    single = run("plan", "step.py:sized", "-c", "4xh100", "--no-baselines", "--json").answer
    last = rows[3]
    for name in ("step_s", "peak_bytes", "mesh", "gap", "fits", "microbatches"):
        assert last[name] == single[name]
    assert single["cached"] is True  # by the process that planned the row
    assert last["device_seconds"] == pytest.approx(4 * last["step_s"])
    for name, k in answer["best"].items():
        assert rows[k][name] == min(row[name] for row in rows)
    assert json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8")) == answer
    for name in ("mfu", "examples_per_s", "dollars"):
        glance = single["at_a_glance"]
        assert last[name] == glance[name]
    shown = run(*SWEEP, *SOME).out
    assert "device time" in shown
    assert shown.count("*") >= 2


PRICED = """
device: h100
devices: 8
devices_per_host: 4
prices: {dollars_per_device_hour: 3.6}
"""


def test_devices_of_a_priced_file_and_a_batch_for_each(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(PRICED, encoding="utf-8")
    words = ("plan", "step.py:sized", "-c", "c.yaml", "--no-baselines", "-j", "1",
             "--sweep", "devices=2..4,batch=8/device")  # fmt: skip
    shown = run(*words, "--report", "a.html", "-o", "sweep.json").out
    answer = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert [(row["devices"], row["batch"]) for row in answer["rows"]] == [(2, 16), (4, 32)]
    for row in answer["rows"]:
        assert row["swept"]["batch"] == "8/device"
        assert row["dollars"] == pytest.approx(row["devices"] * row["step_s"] * 3.6 / 3600)
    (said,) = answer["recommended"]
    assert said["devices"] in (2, 4)
    assert run("report", "sweep.json", "-o", "b.html").status == 0
    first, second = ((tmp_path / name).read_text(encoding="utf-8") for name in ("a.html", "b.html"))
    assert first == second
    assert said["sentence"] in first
    assert said["sentence"] in shown
    assert "32 (8/device)" in shown
    assert run("report", "sweep.json", "-o", "b.html", "--trace", "t.json").status == 2


@pytest.mark.exhaustive
def test_one_device_that_is_too_small_is_shown_so(run: Run) -> None:
    sweep = ("--sweep", "devices=1,2,width=64")
    ran = run(*SWEEP, *sweep, "--memory", "1kB", "--json", "-j", "1")
    assert ran.status == 1
    assert [row["error"]["kind"] for row in ran.answer["rows"]] == ["does-not-fit"] * 2


def test_what_fails_is_a_row_of_its_own(run: Run) -> None:
    ran = run(*SWEEP, "--sweep", "batch=16,26,13,32", "-j", "1", "--json")
    assert ran.status == 0
    good, raised, killed, after = ran.answer["rows"]
    assert good["fits"]
    assert after["fits"]
    assert "26 is no batch" in raised["error"]["message"]
    assert killed["error"]["message"].endswith("ended with status -9")


@pytest.mark.exhaustive
def test_where_all_fails_the_command_fails(run: Run) -> None:
    assert run(*SWEEP, "--sweep", "batch=26", "--json").status == 2


WRONG = {
    "a name that the function has not": ("--sweep", "depth=1"),
    "no values": ("--sweep", "devices="),
    "no such cluster": ("-c", "8xh1000", "--sweep", "devices=2"),
    "no such file": ("-c", "c.yaml", "--sweep", "devices=2"),
    "devices of several groups": ("-c", "mixed.yaml", "--sweep", "devices=2"),
    "a report without a sweep": ("--report", "x.html"),
    "no folder": (*SOME, "-o", "no/x.json"),
    "no processes": (*SOME, "--jobs", "0"),
    "processes without a sweep": ("--jobs", "2"),
    "a cluster without a sweep": ("--ray", "auto"),
}


@pytest.mark.parametrize("words", WRONG.values(), ids=list(WRONG))
def test_wrong_use_is_one_line_and_leaves_nothing(run: Run, words: tuple[str, ...]) -> None:
    Path("mixed.yaml").write_text("groups: [{device: h100, devices: 8}]", encoding="utf-8")
    before = sorted(Path().rglob("*.json"))
    ran = run(*SWEEP, *words)
    assert ran.status == 2
    assert ran.out == ""
    assert len(ran.err.strip().splitlines()) == 1
    assert sorted(Path().rglob("*.json")) == before


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named(run: Run) -> None:
    ran = run(*SWEEP, *SOME, "--ray", "auto", "-o", "sweep.json", "--json")
    assert ran.status == 2
    assert ran.error["kind"] == "missing-library"
    assert "meshwright[ray]" in ran.error["remedy"]
    assert not Path("sweep.json").exists()


@pytest.mark.slow
def test_an_interrupt_keeps_the_rows_that_are_done(run: Run, tmp_path: Path) -> None:
    del run  # its folder is used
    process = subprocess.Popen(
        [*PROGRAM, *SWEEP, "--sweep", "batch=16,31", "-j", "1", "-o", "sweep.json", "--json"],
        cwd=tmp_path, env=environment(XDG_CACHE_HOME=str(tmp_path / "cache")),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    kept: dict[str, Any] = {}
    for _ in range(1200):
        time.sleep(0.05)
        if (tmp_path / "sweep.json").exists():
            kept = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
            if kept["rows"]:
                break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    answer = json.loads(out)
    assert answer == json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert answer["complete"] is False
    assert [row["batch"] for row in answer["rows"]] == [16]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'meshwright[ray]'"
)
def test_a_ray_cluster_plans_the_same_rows(run: Run, tmp_path: Path) -> None:
    """Against the processes of this machine, on a cluster that is started here."""
    here = run(*SWEEP, *SOME, "--json").answer
    program = shutil.which("ray", path=os.pathsep.join([str(Path(sys.executable).parent),
                                                        os.environ["PATH"]]))  # fmt: skip
    assert program is not None
    env = environment(XDG_CACHE_HOME=str(tmp_path / "cache"), RAY_TMPDIR=str(tmp_path)[:40])
    port = 20_000 + os.getpid() % 10_000
    head = subprocess.Popen(
        [program, "start", "--head", f"--port={port}", "--num-cpus=2", "--block",
         "--include-dashboard=0", "--disable-usage-stats"],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        for _ in range(120):
            time.sleep(0.5)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        time.sleep(3.0)  # the node joins after the port is open
        done = subprocess.run(
            [*PROGRAM, *SWEEP, *SOME, "--ray", f"127.0.0.1:{port}", "--json"], cwd=tmp_path,
            env=env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        head.wait(timeout=60)
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    varying = {"seconds", "cached"}
    for a, b in zip(here["rows"], there["rows"], strict=True):
        assert {k: v for k, v in a.items() if k not in varying} == {
            k: v for k, v in b.items() if k not in varying
        }
