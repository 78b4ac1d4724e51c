"""`meshwright plan`: answers, wrong use of every option, and the keys of `--json`."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import load
from tests.planner.cli.runner import Run

KEYS = {
    "step_s", "peak_bytes", "fits", "lower_bound_s", "gap", "stop", "mesh", "microbatches",
    "schedule", "stages", "baselines", "collectives", "substitutions", "warnings", "seconds",
}  # fmt: skip


def test_page_names_the_plan(run: Run) -> None:
    ran = run("plan", "step.py:donated", "--cluster", "8xh100")
    assert ran.status == 0
    assert ran.out.startswith("Plan for train_step on 8xh100\n")
    assert "lower bound" in ran.out
    assert "data-parallel" in ran.out
    assert ran.err == ""
    assert "\x1b" not in ran.out


def test_json_keeps_its_contract(run: Run) -> None:
    ran = run("plan", "step.py:adam", "-c", "8xh100", "--pin", "params/w1=-,8", "--json")
    assert ran.status == 0
    answer = ran.answer
    assert answer.keys() >= KEYS
    assert answer["fits"] is True
    assert 0 < answer["lower_bound_s"] <= answer["step_s"]
    assert answer["seconds"].keys() == {"trace", "substitute", "build", "solve", "inter", "total"}
    (stage,) = answer["stages"]
    assert stage.keys() == {"layers", "devices", "mesh", "step_s", "peak_bytes", "recompute"}
    assert answer["collectives"]
    for row in answer["collectives"]:
        assert row.keys() == {
            "kind", "axes", "group_size", "bytes", "count", "seconds", "cause", "exposed_s"
        }  # fmt: skip
    for row in answer["baselines"].values():
        assert row.keys() >= {"step_s", "peak_bytes", "fits"}
    assert "data-parallel" in answer["baselines"]


@pytest.mark.parametrize("name", ["sgd", "adam", "with_aux", "bound", "fixed", "holder.target"])
def test_any_callable_without_arguments_is_a_target(run: Run, name: str) -> None:
    ran = run("plan", f"step.py:{name}", "-c", "2xh100", "--no-baselines", "--json")
    assert ran.status == 0
    assert ran.answer["baselines"] == {}


def test_what_a_target_prints_is_not_the_answer(run: Run) -> None:
    ran = run("plan", "step.py:noisy", "-c", "2xh100", "--no-baselines", "--json")
    assert ran.answer["step_s"] > 0
    assert ran.err == "a word from the target\n"


def test_writes_the_plan(run: Run, tmp_path: Path) -> None:
    ran = run("plan", "step.py:sgd", "-c", "8xh100", "-o", "out.json", "--no-baselines")
    assert "written to out.json" in ran.out
    assert load(tmp_path / "out.json").step_s > 0


def test_host_means_the_devices_present(run: Run) -> None:
    ran = run("plan", "step.py:sgd", "-c", "host", "--no-baselines", "--json")
    assert sum(ran.answer["mesh"].values()) > 0
    assert ran.answer["stages"][0]["devices"] == [0, 8]


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [
        pytest.param("2x4", {"x": 2, "y": 4}, marks=pytest.mark.exhaustive),
        ("tensor=2,data=4", {"tensor": 2, "data": 4}),
    ],
)
def test_mesh_and_microbatches_are_obeyed(mesh: str, axes: dict[str, int], run: Run) -> None:
    shape = ("--mesh", mesh, "--microbatches", "2", "--no-baselines", "--json")
    answer = run("plan", "step.py:adam", "-c", "8xh100", *shape).answer
    assert list(answer["mesh"].items()) == list(axes.items())
    assert answer["microbatches"] == 2


def test_wishes_of_target_and_command_line_add_up(run: Run) -> None:
    output = ("--no-baselines", "-o", "out.json")
    pins = ("--pin", "params/w1=[-,8]", "--forbid", "params/w2=0")
    assert run("plan", "step.py:pinned", "-c", "8xh100", *pins, *output).status == 0
    found = load("out.json")
    assert found.program.pins == (("batch/x", "[-,-]"), ("params/w1", "[-,8]"))
    assert found.program.forbidden == (("params/w2", 0),)
    states = found.input_shardings()
    assert str(states["params/w1"]) == "[-,x]"
    assert not states["params/w2"].dims[0]
    assert states["batch/x"].is_replicated


def test_what_does_not_fit_is_a_negative_answer(run: Run) -> None:
    ran = run("plan", "step.py:sgd", "-c", "8xh100", "--memory", "20kB", "--json")
    assert ran.status == 1
    assert ran.error["kind"] == "does-not-fit"
    assert ran.error["remedy"]


BAD_OPTIONS = {
    "unknown option": (("--memroy", "1GB"), "usage", "--memory"),
    "no number": (("--time-limit", "soon"), "usage", "--time-limit"),
    "no time": (("--time-limit", "0"), "bad-option", "above 0"),
    "endless": (("--time-limit", "inf"), "bad-option", "above 0"),
    "no size": (("--memory", "lots"), "bad-option", "70GB"),
    "no memory": (("--memory", "0"), "bad-option", "0"),
    "no shape": (("--mesh", "2by4"), "bad-option", "2x4"),
    "empty axis": (("--mesh", "0x4"), "bad-option", "2x4"),
    "other size": (("--mesh", "2x2"), "bad-option", "(2, 4)"),
    "pin without equals": (("--pin", "params"), "bad-option", "PATTERN=VALUE"),
    "pin of nothing": (("--pin", "params/w1="), "bad-option", "PATTERN=VALUE"),
    "no sharding": (("--pin", "params/w1=[?]"), "bad-pin", "not a sharding"),
    "pin of none": (("--pin", "weights=-,-"), "bad-pin", "params/w1"),
    "pin of rank 3": (("--pin", "params/w1=-,-,-"), "bad-pin", "3 dimensions"),
    "pin that does not divide": (("--pin", "params/w1=-,3"), "bad-pin", "params/w1"),
    "no dimension": (("--forbid", "params/w1=x"), "bad-option", "number"),
    "forbidden of none": (("--forbid", "weights=0"), "bad-pin", "params/w1"),
    "micro-batches of a plain step": (("--microbatches", "2"), "bad-option", "optimizer"),
    "no micro-batches": (("--microbatches", "0"), "bad-option", "got 0"),
    "no folder": (("-o", "absent/plan.json"), "plan-file", "folder"),
    "a folder": (("-o", "."), "plan-file", "folder"),
    "a device": (("-o", "/dev/null"), "plan-file", "plain file"),
}


@pytest.mark.parametrize(
    ("options", "kind", "word"),
    BAD_OPTIONS.values(),
    ids=[n.replace(" ", "-") for n in BAD_OPTIONS],
)
def test_bad_option_is_one_line(run: Run, options: tuple[str, str], kind: str, word: str) -> None:
    command = ("plan", "step.py:sgd", "-c", "8xh100", "--no-baselines", *options)
    ran = run(*command)
    assert ran.status == 2
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1
    assert word in ran.err
    error = run(*command, "--json").error
    assert error.keys() == {"kind", "message", "where", "remedy"}
    assert error["kind"] == kind


BAD_CLUSTERS = {
    "8xh101": "h100",
    "7xh100:8": "fill hosts",
    "": "write for example",
    "0xh100": "at least 1",
    "absent.yaml": "cannot be read",
}


@pytest.mark.parametrize(("name", "word"), BAD_CLUSTERS.items(), ids=range(len(BAD_CLUSTERS)))
def test_bad_cluster_is_one_line(run: Run, name: str, word: str) -> None:
    ran = run("plan", "step.py:sgd", "-c", name)
    assert (ran.status, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert word in ran.err
    assert run("plan", "step.py:sgd", "-c", name, "--json").error["kind"] == "bad-cluster"


def test_a_missing_option_is_named(run: Run) -> None:
    assert "--cluster" in run("plan", "step.py:sgd").err
    assert run("plan", "step.py:sgd", "--json").error["kind"] == "usage"


def test_the_folder_is_tried_before_the_target(run: Run) -> None:
    ran = run("plan", "step.py:raises", "-c", "8xh100", "-o", "absent/plan.json", "--json")
    assert ran.error["kind"] == "plan-file"


@pytest.mark.parametrize("name", ["fails", "text"])
def test_a_function_that_does_not_trace_is_named(run: Run, name: str) -> None:
    ran = run("plan", f"step.py:{name}", "-c", "8xh100", "--json")
    assert ran.status == 2
    assert (ran.error["kind"], ran.error["where"]) == ("trace", f"step.py:{name}")
