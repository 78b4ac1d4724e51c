# pyright: basic
"""A plan in stages shown, simulated, exported and compared, from Python and from the command."""

from __future__ import annotations

import json
from typing import Any

import jax
import pytest

from planner import compare, load, verify
from planner.common.errors import PlanError
from planner.inspect.export import FORMATS
from planner.inspect.export.degrees import degrees
from planner.pipeline.schedule import read_own
from planner.pipeline.schedule.pricing import price
from planner.result.verify.stages import StagesVerification
from tests.planner.emit.pipelines import CLIPPED, arguments, everything
from tests.planner.pipeline.test_one_or_stages import planned
from tests.planner.pipeline.unproved import without_proof


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> Any:
    jax.config.update("jax_disable_most_optimizations", True)
    with without_proof():
        found = planned(schedules=("1f1b", "gpipe"))
    path = tmp_path_factory.mktemp("pipeline") / "p.json"
    found.save(path)
    jax.config.update("jax_disable_most_optimizations", False)
    return load(path), path


def test_the_file_alone_gives_the_simulated_step(made: Any):
    plan, _ = made
    timeline = plan.simulated.timeline
    assert timeline.step_s == pytest.approx(plan.step_s)
    assert timeline.peak_bytes == pytest.approx([stage.peak_bytes for stage in plan.stages])
    assert plan.schedule in plan.simulated.beside
    same = plan.simulated.beside[plan.schedule]  # the same work, also the update of weights
    assert same.step_s == pytest.approx(plan.step_s)
    assert plan.step_s <= 1.001 * min(
        plan.simulated.beside[name].step_s for name in ("1f1b", "gpipe")
    )


def test_report_and_trace_name_every_stage(made: Any, tmp_path: Any):
    plan, _ = made
    plan.report(tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert "<script" not in page
    for word in ("Gantt", "Memory", "Why not another schedule", "Stages of the program"):
        assert word in page
    programs = [stage.program for stage in plan.file.stages]
    for s, stage in enumerate(plan.file.stages):
        first = programs.index(stage.program) == s
        assert all((f"params/{name}" in page) or not first for name in stage.params[:1])
    plan.trace(tmp_path / "p.trace")
    events = json.loads((tmp_path / "p.trace").read_bytes())["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1}
    assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") == pytest.approx(
        plan.step_s * 1e6
    )


def test_operations_keep_the_lines_of_the_user(made: Any):
    plan, _ = made
    for stage in plan.stage_plans:
        found = [stage.analysed.graph]
        for graph in found:  # bodies of loops and branches follow
            found += [body for node in graph.nodes for body in node.bodies]
        lines = {node.source.partition(":")[0] for graph in found for node in graph.nodes}
        assert "equations.py" not in lines  # where they are run for a stage
        assert "pipelines.py" in lines


def test_an_exported_schedule_simulates_to_the_same_step(made: Any, tmp_path: Any):
    plan, _ = made
    plan.export("schedule", tmp_path / "s.json")
    own = read_own(tmp_path / "s.json")
    assert price(own).timeline.step_s == pytest.approx(plan.step_s)


def test_shardings_and_traffic_say_every_parameter_and_transfer(made: Any, tmp_path: Any):
    plan, _ = made
    plan.export("shardings", tmp_path / "a.json")
    stages = json.loads((tmp_path / "a.json").read_text())["stages"]
    names = [name for stage in stages for name in stage["parameters"]]
    assert {name.partition("[")[0] for name in names} >= {"tok", "layers/w", "layers/b"}
    plan.export("traffic", tmp_path / "t.json")
    rows = json.loads((tmp_path / "t.json").read_text())["transfers"]
    assert [row["what"] for row in rows] == ["values", "gradients"]
    assert all(row["count"] == plan.microbatches and row["bytes"] > 0 for row in rows)


def test_formats_that_cannot_say_stages_refuse(made: Any, tmp_path: Any):
    plan, _ = made
    said = {"megatron", "schedule", "shardings", "traffic"}
    for name in {*FORMATS} - said:
        with pytest.raises(PlanError, match="stages") as caught:
            plan.export(name, tmp_path / "x")
        assert caught.value.kind == "bad-plan"
    with pytest.raises(PlanError, match="there is no format"):
        plan.export("nothing", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@without_proof()
def test_megatron_gets_the_stages(tmp_path: Any):
    made = planned(schedules=("1f1b",), cluster="4xh100")
    said = [degrees(plan.analysed) for plan in made.stage_plans]
    assert said[0].meaning == said[1].meaning
    made.export("megatron", tmp_path / "m.json")
    words = json.loads((tmp_path / "m.json").read_text())["arguments"]
    assert words[words.index("--pipeline-model-parallel-size") + 1] == "2"


def test_megatron_is_refused_stages_that_are_split_in_different_ways(made: Any, tmp_path: Any):
    plan, _ = made
    said = [degrees(one.analysed) for one in plan.stage_plans]
    assert said[0].meaning != said[1].meaning
    with pytest.raises(PlanError, match="its stages are split in different ways"):
        plan.export("megatron", tmp_path / "m.json")
    assert not (tmp_path / "m.json").exists()


def test_a_pipeline_is_compared_with_one_program(made: Any):
    plan, _ = made
    found = compare(plan, plan)
    assert found.same_program
    assert found.a == found.b
    one = planned(pipeline="off")
    both = compare(one, plan)
    assert both.same_program, both.difference
    assert both.a.schedule == "none"
    assert both.b.mesh == {"stages": 2}


def test_stages_are_verified_and_transfers_listed(made: Any):
    plan, _ = made
    with pytest.raises(PlanError, match="has no function yet"):
        verify(plan)
    params, batch = arguments()
    bound = plan.bind(everything, params, batch, optimizer=CLIPPED, has_aux=True)
    found = verify(bound, compiler="host")
    assert isinstance(found, StagesVerification)
    assert found.ok, str(found)
    assert len(found.members) == 2
    assert {"ok", "compiler", "collectives", "memory", "unexplained_bytes"} <= {*found.summary()}
    assert "transfer of values: devices 0 to 1 -> 2 to 3, 4 x" in str(found)
