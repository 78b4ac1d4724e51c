# pyright: basic
"""`plan` with pipelines: chosen, refused, saved, loaded and run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from msgspec import structs

import planner
from costmodel import parse_cluster
from planner import ArgumentError, load, plan
from planner.common.errors import PlanError
from planner.common.request import Request
from planner.common.stop import AS_MANY, NO_STAGES, PROVED, Stop, stop_text
from planner.pipeline.divide.run_costs import RECOMPUTE
from planner.pipeline.stage_choices import CHOSEN
from tests.planner.emit.pipelines import CLIPPED, arguments, everything, three_steps
from tests.planner.pipeline.unproved import without_proof
from tests.planner.programs import slow_machine


@pytest.fixture(autouse=True)
def compiled_in_haste():
    """What is tested here is what the programs compute, not how fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    with without_proof():
        yield
    jax.config.update("jax_disable_most_optimizations", False)


def planned(**settings: Any) -> Any:
    params, batch = arguments()
    given = {"cluster": slow_machine(4), "microbatches": 4, "pipeline": 2, "baselines": False,
             "substitutions": False}  # fmt: skip
    return plan(everything, params, batch, optimizer=CLIPPED, has_aux=True, **given | settings)


@cache
def in_two_stages() -> Any:
    """A plan that tests share; none changes it."""
    return planned(schedules=("1f1b",))


def test_a_pipeline_is_saved_loaded_bound_and_run(tmp_path):
    made = in_two_stages()
    assert len(made.stages) > 1
    assert [s.devices for s in made.stages] == [(0, 2), (2, 4)]
    assert made.schedule == "1f1b"
    assert made.microbatches == 4
    assert made.fits
    assert made.lower_bound_s <= made.step_s
    assert "lower bound  " in str(made)
    assert "a plan of one program was not planned, as a pipeline is asked for" in str(made)
    assert "pipelines as asked for (pipeline=2; microbatches=4; schedules=1f1b)" in str(made)
    assert {s.recompute for s in made.stages} <= {*RECOMPUTE, CHOSEN}
    made.save(tmp_path / "a.json")
    again = load(tmp_path / "a.json")
    again.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    with pytest.raises(PlanError, match="has no function yet"):
        again.compile()
    params, batch = arguments()
    bound: Any = again.bind(everything, params, batch, optimizer=CLIPPED, has_aux=True)
    assert_same_steps(bound)


def assert_same_steps(plan: Any) -> None:
    """Three steps as planned are three steps of the unsharded program."""
    params, batch = arguments()
    loss = plan.bound.loss
    state = loss.built.init(params)
    expected = three_steps(jax.jit(loss.built.fn), params, state, batch)
    found = three_steps(plan.compile(), params, state, batch)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["interleaved", "zb-v"])
def test_stages_in_turn_on_each_group_are_chosen_saved_and_run(name: str, tmp_path):
    made = planned(schedules=("1f1b", name))
    assert made.schedule == name
    assert made.step_s < planned(schedules=("1f1b",)).step_s
    groups, rows = [(0, 2), (2, 4)], made.file.joined.chunks
    expected = groups * rows if name == "interleaved" else groups + groups[::-1]
    assert [s.devices for s in made.stages] == expected
    assert made.fits
    assert made.simulated.timeline.step_s == pytest.approx(made.step_s)
    made.report(tmp_path / "r.html")
    made.trace(tmp_path / "t.json")
    for format_ in ("schedule", "shardings", "traffic"):
        made.export(format_, tmp_path / format_)
    assert "stage 3" in str(made)
    assert "compute" in made.explain("3")
    made.save(tmp_path / "a.json")
    params, batch = arguments()
    again = load(tmp_path / "a.json")
    bound: Any = again.bind(everything, params, batch, optimizer=CLIPPED, has_aux=True)
    assert_same_steps(bound)


def test_a_plan_for_another_program_is_refused(tmp_path):
    made = in_two_stages()
    params, batch = arguments(layers=6)
    with pytest.raises(PlanError, match=r"is of a program of|is not the one that was planned"):
        made.bind(everything, params, batch, optimizer=CLIPPED, has_aux=True)


def test_a_step_called_with_other_than_it_was_planned_for_is_refused():
    made = in_two_stages()
    params, batch = arguments()
    state, step = made.bound.loss.built.init(params), made.compile()
    narrow = {**batch, "ids": batch["ids"][:, :1]}
    short = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == "float32" else x, params)
    for given, words in (
        ((params, state, narrow), r"'batch/ids' was planned as int32\[8, 4\], it is called with"),
        ((short, state, batch), r"'params/gain' was planned as float32\[8\]"),
        ((params, state, {**batch, "ids": "x"}), "'batch/ids' is a str"),
        ((params, state, 3), "the structure"),
        ((params, state), "missing a required argument: 'batch'"),
    ):
        with pytest.raises(ArgumentError, match=words):
            step(*given)
    with pytest.raises(PlanError, match="must be 0 or 1"):
        made.shard(params, argnum=2)
    with pytest.raises(ArgumentError, match="is a shape, expected an array"):
        made.shard(made.bound.loss.params, argnum=0)
    for of_one_program in (
        "analysed", "program", "graph", "decisions", "in_shardings", "out_shardings",
    ):  # fmt: skip
        with pytest.raises(PlanError, match="is a plan in stages"):
            getattr(made, of_one_program)
    for call in (made.input_shardings, lambda: planner.structs(made, params)):
        with pytest.raises(PlanError, match="is a plan in stages"):
            call()


def test_a_step_leaves_what_was_placed_for_it_and_refuses_what_it_used():
    made = in_two_stages()
    params, batch = arguments()
    for given in (params, jax.device_put(params, jax.devices()[0])):
        state = made.bound.loss.built.init(given)
        step = made.compile()
        here, there = step.place(given, 0), step.place(state, 1)
        fresh, _, _ = step(here, there, batch)
        for kept, old in zip(jax.tree.leaves(given), jax.tree.leaves(params), strict=True):
            np.testing.assert_array_equal(np.asarray(kept), np.asarray(old))
        with pytest.raises(ArgumentError, match="was given to an earlier step, which reused"):
            step(here, there, batch)
        with pytest.raises(ArgumentError, match="'opt_state/"):
            step(fresh, there, batch)


def test_what_cannot_be_had_is_said():
    with pytest.raises(PlanError, match="stages cannot share 4 devices"):
        planned(pipeline=5)
    with pytest.raises(PlanError, match=r"30 stages, but the program has \d+ layers"):
        planned(pipeline=30, cluster=slow_machine(32))
    with pytest.raises(PlanError, match="does not fit: the smallest") as caught:
        planned(memory_bytes=1500)
    assert caught.value.needs_bytes > 1500
    assert "more than the limit" in caught.value.message
    assert "or at least" in caught.value.remedy
    with pytest.raises(PlanError, match="at least 2 stages"):
        planned(pipeline=1)
    with pytest.raises(PlanError, match="mesh applies to a single program"):
        planned(mesh=(2, 2))
    with pytest.raises(PlanError, match="8 examples do not divide into 3"):
        planned(microbatches=3)
    with pytest.raises(PlanError, match=r"Options\.pipeline"):
        planned(pipeline="on")
    with pytest.raises(PlanError, match="only with optimizer="):
        plan(jnp.sin, jnp.ones(4), cluster=slow_machine(4), pipeline=2)


@pytest.mark.exhaustive
def test_any_number_of_devices_is_divided():
    shape = jax.ShapeDtypeStruct
    params = {"w": [shape((8, 16), jnp.float32)] * 3, "v": [shape((16, 8), jnp.float32)] * 3}
    hosts = replace(slow_machine(18), devices_per_host=6, domain=6)
    for machine, stages in ((slow_machine(7), 2), (slow_machine(6), 3), (hosts, 2)):
        made: Any = plan(
            chained, params, {"x": shape((12, 8), jnp.float32)}, cluster=machine,
            optimizer=CLIPPED, pipeline=stages, microbatches=2, schedules="1f1b",
            baselines=False,
        )  # fmt: skip
        assert len(made.stages) == stages
        assert made.stages[-1].devices[1] == machine.num_devices


def test_wishes_for_one_program_are_not_lost_in_stages():
    shape = jax.ShapeDtypeStruct
    params = {"w": [shape((32, 512), jnp.float32)] * 4, "v": [shape((512, 32), jnp.float32)] * 4}
    batch = {"x": shape((64, 32), jnp.float32)}
    made = plan(
        chained, params, batch, cluster=far_apart(), optimizer=CLIPPED, mesh=(4,), baselines=False,
    )  # fmt: skip
    assert len(made.stages) == 1
    assert dict(made.mesh.axes) == {"x": 4}


def far_apart() -> Any:
    """Two hosts of two devices, with next to no network between them."""
    machine = slow_machine(4)
    network = structs.replace(machine.network, bandwidth_bytes_per_s=1e6, latency_s=5e-3)
    device = structs.replace(machine.device, peak_flops=(("float32", 1e8),),
                             memory_bandwidth_bytes_per_s=1e12)  # fmt: skip
    return replace(machine, devices_per_host=2, domain=2, network=network, device=device)


def chained(params: Any, batch: Any) -> Any:
    """Wide layers on narrow activations: weights are dear to move, activations cheap."""
    x = batch["x"]
    for w, v in zip(params["w"], params["v"], strict=True):
        x = x + jnp.tanh(x @ w) @ v
    return jnp.mean(jnp.square(x))


def test_a_pipeline_is_chosen_where_the_network_is_slow():
    shape = jax.ShapeDtypeStruct
    params = {"w": [shape((32, 512), jnp.float32)] * 3, "v": [shape((512, 32), jnp.float32)] * 3}
    batch = {"x": shape((64, 32), jnp.float32)}
    auto = plan(chained, params, batch, cluster=far_apart(), optimizer=CLIPPED)
    single = plan(chained, params, batch, cluster=far_apart(), optimizer=CLIPPED, pipeline="off")
    assert len(auto.stages) > 1
    assert auto.step_s < single.step_s
    by_hand = {name for name in auto.baselines if name.startswith("equal ")}
    assert by_hand
    assert all(auto.step_s <= b.step_s * (1 + 1e-9) for b in auto.baselines.values())
    # beside a pipeline that is faster, one program is not searched to the end
    assert auto.file.joined.no_single == ""
    assert "  one program " in str(auto)
    assert single.step_s <= auto.baselines["one program"].step_s <= single.step_s * 1.01


@pytest.mark.parametrize(("count", "pipeline", "said"), [
    (4, "auto", True), (4, "off", False), (1, "auto", False),
])  # fmt: skip
def test_one_program_on_one_island_says_that_pipelines_were_not_searched(
    count: int, pipeline: str, said: bool
) -> None:
    shape = jax.ShapeDtypeStruct
    params = {"w": [shape((32, 64), jnp.float32)] * 2, "v": [shape((64, 32), jnp.float32)] * 2}
    found = plan(
        chained, params, {"x": shape((64, 32), jnp.float32)}, cluster=slow_machine(count),
        optimizer=CLIPPED, pipeline=pipeline, baselines=False, substitutions=False,
    )  # fmt: skip
    assert (NO_STAGES in found.warnings) == said
    assert ("in one program" in stop_text(Stop.OPTIMAL, found.warnings)) == said
    assert AS_MANY in found.warnings  # of no other number of micro-batches


def test_one_program_is_planned_where_it_lacks_memory_as_written_and_rewrites_save_much() -> None:
    """44 % of its step, and nothing of stages that part the products which are merged."""
    shape = jax.ShapeDtypeStruct
    machine = parse_cluster("2xv100-16gb:1")
    network = structs.replace(machine.network, bandwidth_bytes_per_s=0.8e9)

    def merged(params: Any, batch: Any) -> Any:
        x = batch["x"] @ params["e"]
        u, v = x @ params["a"], x @ params["b"]
        return jnp.mean(jnp.tanh(u @ params["c"] + v @ params["c"]) ** 2)

    sizes = {"a": (8192, 1024), "b": (8192, 1024), "c": (1024, 8192), "e": (512, 8192)}
    params = {name: shape(size, jnp.float32) for name, size in sizes.items()}
    auto, single = (
        plan(
            merged, params, {"x": shape((8192, 512), jnp.float32)}, optimizer=CLIPPED,
            cluster=replace(machine, network=network), recompute="written", baselines=False,
            memory_bytes=948_000_000, pipeline=pipeline,
        )
        for pipeline in ("auto", "off")
    )  # fmt: skip
    assert single.program.substitutions
    assert single.microbatches > 1  # it does not fit at once
    assert auto.step_s <= single.step_s * (1 + 1e-9)


@pytest.mark.exhaustive
def test_the_bound_of_one_program_holds_for_pipelines_too():
    shape = jax.ShapeDtypeStruct
    params = {"w": [shape((32, 64), jnp.float32)] * 4, "v": [shape((64, 32), jnp.float32)] * 4}
    batch = {"x": shape((4096, 32), jnp.float32)}
    near = replace(far_apart(), network=slow_machine(4).intra_host)
    given = {"cluster": near, "optimizer": CLIPPED, "baselines": False, "substitutions": False}
    auto, single = (
        plan(chained, params, batch, **given),
        plan(chained, params, batch, pipeline="off", **given),
    )
    assert len(auto.stages) == 1
    assert auto.step_s == pytest.approx(single.step_s)
    assert single.stop is Stop.OPTIMAL
    stages = plan(chained, params, batch, pipeline=2, **given)
    assert auto.lower_bound_s <= min(single.lower_bound_s, stages.step_s)
    assert any("one kind of recomputation in each stage" in note for note in auto.warnings)
    if auto.gap > PROVED:
        assert auto.stop is Stop.GAP
        assert any("best single program" in note for note in auto.warnings)


def test_a_loss_that_needs_groups_of_examples_gets_fewer_micro_batches() -> None:
    def loss(params, batch):
        x = batch["x"]
        for w in params:
            x = x + jnp.tanh(x.reshape(-1, 8, 16) @ w).reshape(x.shape)
        return jnp.mean((x - batch["y"]) ** 2)

    rows = jax.ShapeDtypeStruct((64, 16), jnp.float32)
    params = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 4
    found = plan(
        loss, params, {"x": rows, "y": rows}, cluster="4xh100:2", optimizer=optax.sgd(0.1),
        pipeline=2, loss_reduction="mean", baselines=False, schedules="1f1b", substitutions=False,
    )  # fmt: skip
    assert len(found.stages) == 2
    assert 64 // found.microbatches % 8 == 0


@pytest.mark.parametrize(
    ("pipeline", "at", "stages"), [(2, "best pipeline", 2), ("auto", "a stage on", 1)]
)
def test_the_time_limit_ends_the_search_for_pipelines(
    monkeypatch: pytest.MonkeyPatch, pipeline: Any, at: str, stages: int
):
    """What was found by then is the plan, which says so and claims no bound."""
    said: list[str] = []
    late = property(lambda _: any(at in line for line in said))
    monkeypatch.setattr(Request, "out_of_time", late)
    made = planned(
        pipeline=pipeline, schedules=("1f1b",), cluster=far_apart(), progress=said.append
    )
    assert len(made.stages) == stages
    assert made.lower_bound_s == 0.0
    assert "the time limit ended the search" in str(made)
    assert made.stop is Stop.TIME_LIMIT
    assert Stop.TIME_LIMIT.value in str(made)
    after = said[next(k for k, line in enumerate(said) if at in line) :]
    assert not [line for line in after[1:] if "stage" in line]
