# pyright: basic
"""What stages compute again value by value: equal values, less kept, never slower, as saved."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ir import digest
from planner import Options, load, plan
from planner.pipeline import other_divisions
from planner.pipeline.cut.opened_loss import Opened, cut_of, opened
from planner.pipeline.cut.replaced import late_inputs, traced_joint, with_program
from planner.pipeline.cut.stage_gradient import Joint, joint_of
from planner.pipeline.cut.stage_training_step import StageTrainingStep, training_step_of
from planner.pipeline.divide.simulated import ranked
from planner.pipeline.divide.stage_price import StagePrice
from planner.pipeline.stage_choices import CHOSEN, with_choices
from planner.pipeline.stage_edits import StageEdits
from planner.pipeline.trials import PlannedPipeline, Trials
from planner.sharding.recompute.choices import choices, recomputable
from planner.sharding.recompute.every_choice import every_choice as subsets
from planner.sharding.recompute.kinds import chosen_by_kind
from planner.sharding.recompute.saved import layers_of
from planner.sharding.recompute.variants import kept_by, rows_of, variant_of
from tests.planner.emit.pipelines import arguments, cuts_near, everything, masked
from tests.planner.pipeline.trained import assert_trains
from tests.planner.pipeline.unproved import without_proof

SGD = optax.sgd(0.1, momentum=0.9)


def written_out(params: Any, batch: Any) -> Any:
    """Layers that are no loop, and a result whose derivative reads it as it is."""
    x = batch["x"]
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def lost(fn: Any, params: Any, batch: Any, **settings: Any) -> Opened:
    return opened(fn, params, batch, SGD, microbatches=2, **settings)


def stages() -> list[tuple[Opened, Joint]]:
    """Stages of losses with ties, dropout, `jax.checkpoint`, and layers written out."""
    params, batch = arguments()
    chain = [jnp.ones((8, 8))] * 4, {"x": jnp.ones((8, 8))}
    losses = [
        lost(everything, params, batch, has_aux=True), lost(masked, params, batch, has_aux=True),
        lost(written_out, *chain),
    ]  # fmt: skip
    found: list[tuple[Opened, Joint]] = []
    for loss in losses:
        cut = cut_of(loss, cuts_near(loss.chain, (1.0, 1.0)))
        found += [(loss, joint_of(loss.program, cut, s)) for s in range(2)]
    return found


STAGES = stages()


def chosen(joint: Joint, values: Any) -> Joint:
    """A stage with values computed again, by way of the rows of a plan file."""
    rows = StageEdits(rows_of(values))
    return with_program(joint, rows.applied(joint, "a stage"))


def random_arguments(joint: Joint) -> list[list[Any]]:
    rng = np.random.default_rng(0)

    def array(s: Any) -> Any:
        if jnp.issubdtype(s.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(3), s.shape) if s.shape else jax.random.key(3)
        if jnp.issubdtype(s.dtype, jnp.floating):
            return jnp.asarray(rng.normal(size=s.shape), s.dtype)
        return jnp.asarray(rng.integers(1, 8, s.shape), s.dtype)

    return [[array(s) for s in each] for each in joint.structs.values()]


@pytest.mark.parametrize("number", range(len(STAGES)))
def test_every_choice_of_a_stage_has_its_values(number: int) -> None:
    _, joint = STAGES[number]
    traced = traced_joint(joint)
    late = late_inputs(joint, traced)
    layers = layers_of(kept_by(traced, late).program, late)
    given = random_arguments(joint)
    expected = jax.jit(joint.run)(*given)
    some = choices(layers, lambda _: 1e-6)
    distinct = {frozenset(values) for values in [*some[:2], *some[-3:]]}
    for values in sorted(distinct, key=sorted):
        found = jax.jit(chosen(joint, values).run)(*given)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def step_of(loss: Opened, joint: Joint) -> StageTrainingStep:
    return training_step_of(joint, loss.microbatches, SGD)


def saved_bytes(stage: StageTrainingStep) -> int:
    return sum(stage.body.graph.types[v].nbytes for v in stage.program.parts.saved)


@pytest.mark.parametrize("number", range(len(STAGES)))
def test_what_is_computed_again_is_of_the_backward_pass(number: int) -> None:
    """Also where the first node of that pass reads it beside an incoming gradient."""
    loss, joint = STAGES[number]
    traced = traced_joint(joint)
    late = late_inputs(joint, traced)
    kept = kept_by(traced, late)
    layers = layers_of(kept.program, late)
    everything_kept = step_of(loss, with_program(joint, kept))
    full = step_of(loss, chosen(joint, chosen_by_kind(layers, "full")))
    assert saved_bytes(full) < saved_bytes(everything_kept)
    every = frozenset[Any]().union(*recomputable(layers))
    again = step_of(loss, chosen(joint, every))
    forward = again.program.parts.forward.program.graph
    assert all(node.op != "remat" for node in forward.nodes)
    stacks = [v for v in again.program.parts.saved if again.body.graph.types[v].rank > 0]
    makers = {again.body.graph.nodes[again.body.graph.maker[v]].op for v in stacks}
    assert makers <= {"scan"}  # inputs of layers alone


def test_rows_of_a_choice_make_its_program() -> None:
    _, joint = STAGES[0]
    traced = traced_joint(joint)
    late = late_inputs(joint, traced)
    kept = kept_by(traced, late)
    values = chosen_by_kind(layers_of(kept.program, late), "selective")
    direct = variant_of(kept, values, late)
    edits = StageEdits(direct.rows)
    assert digest(edits.applied(joint, "a stage").graph) == digest(direct.traced.graph)


def planned(fn: Any = masked, choose: bool = True, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch, without_proof():
        if not choose:
            patch.setattr(other_divisions, "with_choices", lambda best, _: best)
        settings: dict[str, Any] = {
            "optimizer": SGD, "has_aux": True, "cluster": "8xhost", "pipeline": 2,
            "microbatches": 4, "substitutions": False, "baselines": False, "schedules": ("1f1b",),
        }  # fmt: skip
        return plan(fn, *arguments(batch=64), **settings | options)


@pytest.fixture(scope="module")
def found() -> Any:
    return planned()


def test_a_choice_is_faster_than_the_kinds(found: Any) -> None:
    without = planned(choose=False)
    assert CHOSEN in found.file.recompute
    assert found.step_s < without.step_s
    assert CHOSEN not in without.file.recompute
    assert 0.0 < found.lower_bound_s <= found.step_s
    assert any("of the choices that were planned" in text for text in found.warnings)
    for stage, program in zip(found.file.stages, found.file.members, strict=True):
        assert (stage.recompute == CHOSEN) == (program.recomputed is not None)


def test_the_word_of_the_program_is_kept() -> None:
    best: Any
    best, options = SimpleNamespace(), Options(recompute="written")
    trials: Any = SimpleNamespace(planner=SimpleNamespace(options=options))
    assert with_choices(best, trials) is best


def test_a_choice_is_printed_and_explained(found: Any) -> None:
    s = found.file.recompute.index(CHOSEN)
    program = found.file.members[s]
    count = sum(len(row.numbers) for row in program.recomputed)
    text = f"{count} values chosen to be computed again" if count else "all values kept"
    assert text in str(found)
    assert text in found.explain(str(s))


def test_stages_with_choices_train_as_the_step_does(found: Any, tmp_path: Path) -> None:
    found.save(tmp_path / "plan.json")
    loaded = load(tmp_path / "plan.json")
    for own, read in zip(found.file.members, loaded.file.members, strict=True):
        assert own.recomputed == read.recomputed
    assert_trains(loaded, SGD)


def every_choice(found: PlannedPipeline, trials: Trials, s: int) -> list[StagePrice]:
    """Prices of a stage of a pipeline under every choice that fits."""
    shape, loss = found.ranked.shape, found.bound.loss
    whole = replace(shape, recompute=(CHOSEN,) * len(shape.sizes))
    joint = joint_of(loss.program, cut_of(loss, shape.cuts), s)
    traced = traced_joint(joint)
    late = late_inputs(joint, traced)
    each = recomputable(layers_of(kept_by(traced, late).program, late))
    assert len(each) <= 6
    prices: list[StagePrice] = []
    for values in [frozenset[Any](), *subsets(each)]:
        step = step_of(loss, chosen(joint, values))
        one = trials.planner.planned_below(step, whole, s, found.flight[s], math.inf)
        if one is not None:
            prices.append(one[1])
    return prices


@pytest.mark.parametrize("room", [1.0, 0.9])
def test_no_choice_of_a_small_stage_is_faster(room: float) -> None:
    """Against all subsets of the values, with and without memory for all of them."""
    layers = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 4
    args = layers, {"x": jax.ShapeDtypeStruct((4096, 64), jnp.float32)}
    seen: list[tuple[PlannedPipeline, Trials]] = []

    def noted(best: PlannedPipeline, trials: Trials) -> PlannedPipeline:
        seen.append((with_choices(best, trials), trials))
        return seen[-1][0]

    def found(**options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch, without_proof():
            patch.setattr(other_divisions, "with_choices", noted)
            patch.setattr(other_divisions, "MOST_OTHERS", 0)
            return plan(
                written_out, *args, optimizer=SGD, cluster="4xhost", pipeline=2, microbatches=4,
                substitutions=False, baselines=False, schedules=("1f1b",), **options,
            )  # fmt: skip

    free = found()
    if room < 1.0:
        found(memory_bytes=room * free.peak_bytes)
    pipeline, trials = seen[-1]
    best, machine, limit = pipeline.ranked, trials.planner.machine, trials.planner.limit_bytes
    shape = replace(best.shape, recompute=(CHOSEN, best.shape.recompute[1]))
    for price in every_choice(pipeline, trials, 0):
        prices = price, pipeline.prices[1]
        other = ranked(shape, prices, pipeline.across, machine, limit, ("1f1b",))[0]
        assert other.worst_bytes > limit or other.step_s >= best.step_s * (1 - 1e-6)
