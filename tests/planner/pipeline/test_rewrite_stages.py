# pyright: basic
"""Pipelines with rewritten stages: faster, saved with the rules, equal to the step as written."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ir import IRError
from ir.trace import trace
from planner import PlanError, load, plan
from planner.common.stop import REWRITTEN
from planner.pipeline.cut.opened_loss import cut_of, opened
from planner.pipeline.cut.replaced import traced_joint, with_program
from planner.pipeline.cut.stage_gradient import joint_of
from substitutions import patterns
from tests.planner.pipeline.unproved import without_proof
from tests.planner.sealing import resealed
from tests.planner.sharding.rewrite.programs import S, numbers

ADAM = optax.adam(1e-2)


@jax.custom_vjp
def halved(x):
    """The identity, with a derivative of its author's own."""
    return x


halved.defvjp(lambda x: (x, None), lambda _, g: (g / 2,))


def loss(params, batch):
    """Layers of attention without a softmax, scores first."""

    def layer(x, p):
        q, k, v = (x @ p[name] for name in "qkv")
        scores = jnp.einsum("bse,bte->bst", q, k)
        return x + jnp.einsum("bst,bte->bse", scores, v) / x.shape[1], None

    x, _ = jax.lax.scan(layer, batch["x"], params)
    return jnp.mean((halved(x) - batch["y"]) ** 2)


ARGS = (
    {name: S((4, 32, 32), jnp.float32) for name in "qkv"},
    {name: S((8, 256, 32), jnp.float32) for name in "xy"},
)


@pytest.fixture(autouse=True)
def compiled_in_haste():
    """What is tested here is what the programs compute, not how fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def both():
    """Pipelines of one step, with rewrites and without."""
    settings = {"cluster": "4xhost", "pipeline": 2, "microbatches": 4, "baselines": False,
                "schedules": ("1f1b",)}  # fmt: skip
    with without_proof():
        return [
            plan(loss, *ARGS, optimizer=ADAM, substitutions=on, **settings) for on in (True, False)
        ]


def test_stages_are_rewritten_and_it_pays(both) -> None:
    rewritten, plain = both
    assert set(rewritten.substitutions) <= set(patterns())
    assert sum(rewritten.substitutions.values()) > 1
    assert rewritten.step_s < 0.9 * plain.step_s
    assert plain.substitutions == {}
    assert REWRITTEN in rewritten.warnings
    assert REWRITTEN not in plain.warnings
    assert 0.0 < rewritten.lower_bound_s <= rewritten.step_s
    assert rewritten.lower_bound_s <= plain.lower_bound_s
    rows = {row["rule"]: row["count"] for row in rewritten.summary()["substitutions"]}
    assert rows == rewritten.substitutions
    assert "rewritten" in str(rewritten)
    assert "rewritten" not in str(plain)


def test_a_rewritten_pipeline_is_loaded_and_trains_as_the_step_does(both, tmp_path) -> None:
    both[0].save(tmp_path / "plan.json")
    bound = load(tmp_path / "plan.json").bind(loss, *ARGS, optimizer=ADAM)
    params, batch = map(numbers, ARGS)

    @jax.jit
    def step(params, state, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = ADAM.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    mine = theirs = (params, ADAM.init(params))
    mine = jax.tree.map(jnp.copy, mine)
    run = bound.compile()
    for _ in range(3):
        *mine, value = run(*mine, batch)
        *theirs, expected = step(*theirs, batch)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_rules_that_do_not_fit_the_stages_are_refused(both, tmp_path) -> None:
    both[0].save(tmp_path / "plan.json")
    raw = json.loads((tmp_path / "plan.json").read_text())
    for file in raw["programs"]:
        for row in file["substitutions"]:
            row["count"] += 1
    (tmp_path / "plan.json").write_text(json.dumps(resealed(raw)))
    with pytest.raises(PlanError, match="times from place") as caught:
        load(tmp_path / "plan.json").bind(loss, *ARGS, optimizer=ADAM)
    assert caught.value.kind == "substitutions"


def test_what_is_given_may_not_wait_for_gradients() -> None:
    opening = opened(loss, *ARGS, ADAM, microbatches=4)
    joint = joint_of(opening.program, cut_of(opening, (0, 2, len(opening.layers.slots))), 0)
    with_program(joint, traced_joint(joint))

    def late(params, batch, takes, slopes, sums):
        gives, sent, sums = joint.run(params, batch, takes, slopes, sums)
        return [gives[0] + slopes[0], *gives[1:]], sent, sums

    with pytest.raises(IRError, match="waits for its slopes"):
        with_program(joint, trace(late, *replace(joint, run=late).structs.values()))
