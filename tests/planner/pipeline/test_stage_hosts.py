# pyright: basic
"""Values of stages that wait on the host: equal steps, memory, prices, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from msgspec import structs

from costmodel import parse_cluster
from ir.analysis import offloads
from ir.trace import trace
from planner import load, plan
from planner.common.errors import PlanError
from planner.common.options import Options
from planner.common.request import Request
from planner.files.plan_file import PlanFile
from planner.pipeline import other_divisions, stage_works
from planner.pipeline.check_plan import check_plan
from planner.pipeline.cut.opened_loss import cut_of, opened
from planner.pipeline.cut.replaced import late_inputs, traced_joint
from planner.pipeline.cut.stage_gradient import joint_of
from planner.pipeline.cut.stage_training_step import training_step_of
from planner.pipeline.divide.simulated import ranked
from planner.pipeline.divide.stage_price import StagePrice
from planner.pipeline.search import PipelineSearch
from planner.pipeline.stage_choices import CHOSEN, with_choices
from planner.pipeline.stage_edits import StageEdits
from planner.pipeline.stage_hosts import HostRoom
from planner.pipeline.stage_planner import FAIR
from planner.pipeline.trials import PlannedPipeline, Trials
from planner.sharding.host_limit import USABLE
from planner.sharding.recompute.choices import recomputable
from planner.sharding.recompute.every_choice import every_choice
from planner.sharding.recompute.hosted import stacked_values, with_hosted
from planner.sharding.recompute.saved import layers_of
from planner.sharding.recompute.variants import kept_by, rows_of, variant_of
from planner.training.training import Training
from tests.planner.emit.pipelines import (
    arguments,
    assert_equal_steps,
    everything,
    masked,
    pipeline_of,
)
from tests.planner.programs import linked, slow_machine

from .hosted import random_choices, with_edits
from .trained import assert_trains
from .unproved import without_proof

SGD = optax.sgd(0.1, momentum=0.9)
ORDERED = 1e-3  # the order in which choices are tried knows nothing of fused kernels
MACHINE = linked(slow_machine())


@pytest.mark.parametrize(("fn", "schedule", "seed"), [
    (masked, "1f1b", 0), (everything, "zb-h1", 1), (masked, "1f1b-eager", 2),
])  # fmt: skip
def test_random_choices_train_as_the_step_does(fn: Any, schedule: str, seed: int) -> None:
    """With dropout and tied weights."""
    assert_equal_steps(
        fn, *arguments(), schedule=schedule, mesh=(2, 2), has_aux=True,
        edited=random_choices(seed), microbatches=4,
    )  # fmt: skip


def test_what_waits_is_in_the_memory_of_the_host() -> None:
    """Of all that programs of a stage hand on, and no other value of theirs."""
    _, pipeline = pipeline_of(
        masked, *arguments(), mesh=(2, 2), has_aux=True, edited=random_choices(3)
    )
    for chunk in pipeline.chunks:
        parts = chunk.program.parts
        types = chunk.program.program.graph.types
        structs_of = {v: jax.ShapeDtypeStruct(types[v].shape, types[v].dtype) for v in parts.saved
                      if not types[v].dtype.startswith("key")}  # fmt: skip
        made = chunk.forward.call.lower(*_structs(chunk, chunk.forward.reads))
        kinds = [s.memory_kind for s in made.compile().output_shardings]
        gives = len(chunk.stage.gives)
        away = {v for v, kind in zip(parts.saved, kinds[gives:], strict=True)
                if kind == "pinned_host"}  # fmt: skip
        assert away
        assert away <= structs_of.keys()
        assert "pinned_host" not in kinds[:gives]
        back = chunk.backward.call.lower(*_structs(chunk, chunk.backward.reads)).compile()
        taken = {v for v, s in zip(chunk.backward.reads, back.input_shardings[0], strict=True)
                 if s.memory_kind == "pinned_host"}  # fmt: skip
        assert taken == away


def _structs(chunk: Any, values: Any) -> list[Any]:
    types = chunk.program.program.graph.types
    key = jax.random.key(0).dtype
    return [
        jax.ShapeDtypeStruct(types[v].shape, key if types[v].dtype.startswith("key")
                             else types[v].dtype)
        for v in values
    ]  # fmt: skip


def test_one_program_of_all_stages_refuses_them() -> None:
    with pytest.raises(PlanError, match="wait in the memory of the host"):
        pipeline_of(
            masked, *arguments(), mesh=(2, 2), has_aux=True, edited=random_choices(3), scanned=True
        )


# --- plans -------------------------------------------------------------------------------------


def planned(fn: Any = masked, args: Any = None, **options: Any) -> Any:
    with without_proof():
        settings: dict[str, Any] = {
            "optimizer": SGD, "has_aux": True, "cluster": MACHINE, "pipeline": 2,
            "microbatches": 4, "substitutions": False, "baselines": False, "padding": False,
            "schedules": ("1f1b",),
        }  # fmt: skip
        return plan(fn, *(args or arguments(batch=64)), **settings | options)


@cache
def free() -> Any:
    return planned()


@cache
def short() -> Any:
    return planned(memory_bytes=int(0.8 * free().peak_bytes))


def test_where_memory_is_short_stacks_wait_on_the_host() -> None:
    found, here = short(), planned(memory_bytes=int(0.8 * free().peak_bytes), offload="never")
    assert not any(program.hosted for program in (*free().file.members, *here.file.members))
    assert any(program.hosted for program in found.file.members)
    assert found.step_s < here.step_s
    assert found.peak_bytes <= 0.8 * free().peak_bytes
    assert 0.0 < found.lower_bound_s <= found.step_s
    for stage, program in zip(found.file.stages, found.file.members, strict=True):
        assert not program.hosted or stage.recompute == CHOSEN
        assert bool(program.hosted) == (program.host_bytes > 0.0)


def test_stages_with_values_on_the_host_need_no_less_than_their_bounds_say() -> None:
    found, (params, batch) = short(), arguments(batch=64)
    options = Options(memory_bytes=int(0.8 * free().peak_bytes), microbatches=4)
    training = Training(masked, (params, batch), SGD, True, 0, "step")
    search = PipelineSearch(training, Request(MACHINE, options))
    stages, places = found.file.stages, search.shares.places
    for s, (stage, program) in enumerate(zip(stages, found.file.members, strict=True)):
        run, size = tuple(map(places.index, stage.layers)), stage.devices[1] - stage.devices[0]
        if program.hosted:
            here, _ = search.floors.of_kind(4, size, "none", len(stages) - s, 1)
            away = search.floors.with_hosts()
            floors, fits = away.of_kind(4, size, "none", len(stages) - s, 1)
            needed = floors.needed_bytes(len(stages) - s)[run]
            assert 0.0 < needed <= size * stage.peak_bytes * (1 + 1e-9)
            assert fits[run]
            assert here.needed_bytes(len(stages) - s)[run] > needed


def test_bounds_that_know_of_hosts_have_what_was_proved_without_them() -> None:
    """And are those of more stages, so that they are no higher; what they prove holds for both."""
    options = Options(memory_bytes=int(0.8 * free().peak_bytes), schedules=("1f1b",))
    training = Training(masked, arguments(batch=64), SGD, True, 0, "step")
    search = PipelineSearch(training, Request(MACHINE, options))
    found = search.run(2)
    assert found is not None
    step_s = found.ranked.step_s
    proof, left = search.proof, search.proof.left
    assert proof.is_complete
    away = proof.of_all(step_s)
    more = 0
    for count, size in ((2, 2), (4, 2), (8, 1)):
        for kind in search.floors.kinds:
            own, own_fits = search.floors.of_kind(count, size, kind, 2, 1)
            other, fits = away.floors.of_kind(count, size, kind, 2, 1)
            assert (own.step_s == other.step_s).all()
            assert not (own_fits & ~fits).any()
            more += int((fits & ~own_fits).sum())
    assert more > 0
    known = {key: set(runs) for key, runs in search.floors.passed.items()}
    bound_s = away.lower_bound_s(step_s)
    assert bound_s <= min(step_s, search.proof.lower_bound_s(step_s))
    assert search.floors.passed is away.floors.passed
    assert all(runs <= search.floors.passed[key] for key, runs in known.items())
    assert bound_s >= 0.9 * search.lower_bound_s(step_s) > 0.0
    assert not away.prices  # no stage was planned
    assert proof.left == left


@pytest.mark.parametrize("offload", ["auto", "never"])
def test_less_memory_is_never_faster(offload: str) -> None:
    """Up to what is left open in the search of a stage."""
    limits = [int(share * free().peak_bytes) for share in (0.9, 0.8, 0.7)]
    steps = [planned(memory_bytes=limit, offload=offload).step_s for limit in limits]
    assert all(a <= b * (1 + FAIR.first.tolerance) for a, b in pairwise(steps))


def test_without_offload_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a machine with a link to its hosts has the plan of one without."""
    limit = int(0.8 * free().peak_bytes)
    monkeypatch.setattr(stage_works, "hosted_ways", None)
    here = planned(memory_bytes=limit, offload="never").file
    bare = planned(memory_bytes=limit, cluster=slow_machine()).file
    same = {"cluster": {}}
    for one, two in zip(here.programs, bare.programs, strict=True):
        assert structs.replace(one, **same) == structs.replace(two, **same)
    assert here.stages == bare.stages


def test_the_host_holds_a_stack_for_each_micro_batch() -> None:
    """Bytes of a device are those of its part of every stack, and no stack counts there."""
    found = short()
    for s, program in enumerate(found.file.members):
        if program.hosted:
            flat = found.stage_plans[s].analysed.account
            assert program.host_bytes == sum(
                copy.nbytes / found.file.joined.microbatches
                for copy in flat.host_copies if copy.op == "to_host"
            )  # fmt: skip
            offloaded = found.bound.stages[s].traced.graph
            assert offloads(offloaded)


def test_a_plan_with_values_on_the_host_runs_from_its_file(tmp_path: Path) -> None:
    found = short()
    found.save(tmp_path / "plan.json")
    assert_trains(load(tmp_path / "plan.json"), SGD)


def test_it_is_printed_explained_and_reported(tmp_path: Path) -> None:
    found = short()
    s = next(s for s, program in enumerate(found.file.members) if program.hosted)
    count = sum(len(row.numbers) for row in found.file.members[s].hosted)
    text = f"{count} {'stack' if count == 1 else 'stacks'} on the host: of each micro-batch"
    assert text in str(found)
    explained = found.explain(str(s))
    assert text in explained
    assert "one micro-batch alone:" in explained
    assert "copies to and from the host" in explained
    found.report(tmp_path / "report.html")
    assert text in (tmp_path / "report.html").read_text()


def test_a_file_that_contradicts_itself_is_refused() -> None:
    file: PlanFile = short().file
    check_plan(file, "plan.json")
    m = next(m for m, program in enumerate(file.programs) if program.hosted)
    program = file.programs[m]

    def changed(**fields: Any) -> PlanFile:
        programs = [*file.programs]
        programs[m] = structs.replace(program, **fields)
        return structs.replace(file, programs=tuple(programs))

    for broken in (
        changed(hosted=()), changed(host_bytes=0.0), changed(offload="never"),
        structs.replace(file, stages=tuple(
            structs.replace(stage, recompute="none") for stage in file.stages
        )),
    ):  # fmt: skip
        with pytest.raises(PlanError, match="is not a sound plan: stage"):
            check_plan(broken, "plan.json")


def test_values_that_no_loop_stacks_up_do_not_wait_on_the_host() -> None:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, 1, 8, 8), (8, 8))]
    program = trace(jax.grad(lambda w, x: short_chain(w, {"x": x})), *shapes).program
    (key, *_) = (one.key for one in stacked_values(program))
    assert with_hosted(program, [key]) != program
    for keys in ([key, key], [key, ((77,), 0)]):
        with pytest.raises(PlanError, match="is to wait on the host twice, or no loop"):
            with_hosted(program, keys)


# --- every choice ------------------------------------------------------------------------------


def chain(params: Any, batch: Any) -> Any:
    """A loop over layers of two products."""
    x, _ = lax.scan(lambda x, w: (x + jnp.tanh(x @ w[0]) @ w[1], None), batch["x"], params)
    return jnp.mean(x**2)


def short_chain(params: Any, batch: Any) -> Any:
    """The same of one."""
    x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w[0]), None), batch["x"], params)
    return jnp.mean(x**2)


def prices_of_every(found: PlannedPipeline, trials: Trials, s: int) -> Iterator[StagePrice]:
    """Of a stage of a pipeline: kept, computed again, on the host, in all ways that fit."""
    shape, loss = found.ranked.shape, found.bound.loss
    whole = replace(shape, recompute=(CHOSEN,) * len(shape.sizes))
    joint = joint_of(loss.program, cut_of(loss, shape.cuts), s)
    traced = traced_joint(joint)
    late = late_inputs(joint, traced)
    kept = kept_by(traced, late)
    for values in [frozenset[Any](), *every_choice(recomputable(layers_of(kept.program, late)))]:
        variant = variant_of(kept, values, late)
        stacks = [one.key for one in stacked_values(variant.traced.program)]
        for n in range(len(stacks) + 1):
            for away in combinations(stacks, n):
                edited = with_edits(joint, StageEdits(variant.rows, rows_of(away)))
                step = training_step_of(edited, loss.microbatches, SGD)
                one = trials.planner.planned_below(step, whole, s, found.flight[s], math.inf)
                if one is not None:
                    yield one[1]


@pytest.mark.parametrize(("fn", "room"), [
    (short_chain, 0.9),
    *(pytest.param(chain, room, marks=pytest.mark.exhaustive) for room in (0.95, 0.8, 0.75)),
])  # fmt: skip
def test_no_choice_of_a_small_stage_is_faster(fn: Any, room: float) -> None:
    """Against all sets of values that are computed again and all sets of stacks on the host."""
    args = jnp.ones((4, 2, 64, 64)), {"x": jnp.ones((1024, 64))}
    seen: list[tuple[PlannedPipeline, Trials]] = []

    def noted(best: PlannedPipeline, trials: Trials) -> PlannedPipeline:
        seen.append((with_choices(best, trials), trials))
        return seen[-1][0]

    settings = {"has_aux": False, "cluster": linked(slow_machine(4))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(other_divisions, "with_choices", noted)
        patch.setattr(other_divisions, "MOST_OTHERS", 0)
        whole = planned(fn, args, **settings)
        planned(fn, args, memory_bytes=int(room * whole.peak_bytes), **settings)
    pipeline, trials = seen[-1]
    best, machine, limit = pipeline.ranked, trials.planner.machine, trials.planner.limit_bytes
    shape = replace(best.shape, recompute=(CHOSEN, best.shape.recompute[1]))
    assert pipeline.prices[0].host_bytes > 0.0
    for price in prices_of_every(pipeline, trials, 0):
        prices = price, pipeline.prices[1]
        other = ranked(shape, prices, pipeline.across, machine, limit, ("1f1b",))[0]
        assert other.worst_bytes > limit or other.step_s >= best.step_s * (1 - ORDERED)


# --- the memory of the hosts -------------------------------------------------------------------


def test_stages_of_a_host_share_its_memory() -> None:
    machine = linked(parse_cluster("16xh100"), memory_bytes=100)
    room = HostRoom(machine)
    mine = USABLE * 100 * machine.devices_per_host
    half = mine / 2 / 4
    assert room.fits(range(4), 2 * half)
    room.take(range(4), 2 * half * 0.75)
    assert not room.fits(range(4, 8), half)
    assert room.fits(range(4, 8), half / 2)
    assert not room.fits(range(4, 12), half)  # a stage over two hosts
    assert room.fits(range(8, 16), mine / 8)
    assert HostRoom(linked(parse_cluster("16xh100"))).fits(range(16), math.inf)


def test_what_does_not_fit_the_hosts_stays() -> None:
    limit = int(0.8 * free().peak_bytes)
    tight = planned(memory_bytes=limit, cluster=linked(slow_machine(), memory_bytes=1))
    assert not any(program.hosted for program in tight.file.members)
    assert tight.step_s == planned(memory_bytes=limit, offload="never").step_s


def test_a_loss_that_offloads_on_its_own_stays_as_it_was() -> None:
    """Copies that a checkpoint policy of the loss asks for are not followed in stages."""
    policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")

    def loss(params: Any, batch: Any) -> Any:
        layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w[0]) @ w[1], None), policy=policy)
        return jnp.mean(lax.scan(layer, batch["x"], params)[0] ** 2)

    args = jnp.ones((4, 2, 8, 8)), {"x": jnp.ones((8, 8))}
    found = opened(loss, *args, SGD, microbatches=2)
    joint = joint_of(found.program, cut_of(found, (0, len(found.chain.slots))), 0)
    assert not offloads(training_step_of(joint, 2, SGD).traced.graph)
