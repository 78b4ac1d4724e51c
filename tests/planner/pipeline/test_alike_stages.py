# pyright: basic
"""Stages that slice arrays at other places are planned once, and each runs its own program."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ir.trace import trace
from planner import plan
from planner.pipeline.alike_stages import AlikeStages, is_alike
from planner.pipeline.stage_planner import StagePlanner
from tests.planner.pipeline.cut.test_scaled import dropout
from tests.planner.programs import slow_machine

LAYERS, OPTIMIZER = 7, optax.adam(1e-2)
W = jnp.ones((4, 4))


def stages(pipeline):
    """A plan of equal layers with dropout, the number of stages that were solved, and arguments."""
    loss, params, batch = dropout(LAYERS)
    keys = iter(jax.random.split(jax.random.key(5), 3))
    params = [0.5 * jax.random.normal(next(keys), p.shape) for p in params]
    batch = {"x": jax.random.normal(next(keys), batch["x"].shape), "key": jax.random.key(3)}
    solved = []
    with pytest.MonkeyPatch.context() as patch:
        solve = StagePlanner._solve
        patch.setattr(StagePlanner, "_solve", lambda *a: (solved.append(a), solve(*a))[1])
        made = plan(
            loss, params, batch, optimizer=OPTIMIZER, cluster=slow_machine(),
            pipeline=pipeline, microbatches=4, baselines=False, schedules="1f1b",
        )  # fmt: skip
    return made, len(solved), loss, params, batch


@cache
def together():
    return stages(LAYERS)


def test_stages_that_are_alike_share_decisions_not_programs(monkeypatch: pytest.MonkeyPatch):
    made, solved, *_ = together()
    monkeypatch.setattr(AlikeStages, "first", lambda self, loss, cut, s, own: own)
    apart, more, *_ = stages(LAYERS)
    assert solved < more
    assert made.step_s == apart.step_s
    assert made.lower_bound_s == apart.lower_bound_s
    assert made.schedule == apart.schedule
    rows = zip(made.file.members, apart.file.members, strict=True)
    for one, other in rows:
        assert (one.graph, one.graph_digest) == (other.graph, other.graph_digest)
        assert (one.ops, one.values, one.mesh) == (other.ops, other.values, other.mesh)


def test_each_stage_reads_its_own_entries():
    made, _, loss, params, batch = together()
    grads = jax.grad(loss)(params, batch)
    updates, _ = OPTIMIZER.update(grads, OPTIMIZER.init(params), params)
    expected = jax.device_get(optax.apply_updates(params, updates))
    found = jax.device_get(made.compile()(params, OPTIMIZER.init(params), batch)[0])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def steps(low, op="sin"):
    """A program that slices an array."""
    return trace(lambda x: getattr(jnp, op)(x[low : low + 1] @ W), W).graph


def test_programs_are_alike_that_slice_elsewhere():
    assert is_alike(steps(1), steps(2))
    assert not is_alike(steps(1), steps(2, "cos"))
    assert not is_alike(steps(1), trace(lambda x: jnp.sin(x[1:3] @ W), W).graph)
