# pyright: basic
"""Maps over devices that are no op of a plan are refused while planning, with their place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from planner import PlanError, plan

X = np.ones((8, 8), np.float32)


def mapped(x):
    mesh = Mesh(np.array(jax.devices()), ("own",))
    run = lambda part: lax.psum(part, "own")  # noqa: E731
    return jax.shard_map(run, mesh=mesh, in_specs=PartitionSpec("own"), out_specs=PartitionSpec())(
        x
    )


def in_a_loop(x):
    return lax.scan(lambda carry, _: (carry + mapped(x), None), mapped(x), None, length=2)[0]


def in_a_branch(x):
    return lax.cond(x.sum() > 0, mapped, lambda x: x[:1], x)


def by_pmap(x):
    return jax.pmap(lambda row: jnp.sin(row) + lax.psum(row, "own"), axis_name="own")(x)


def differentiated(x):
    return jax.grad(lambda x: jax.checkpoint(mapped)(jnp.sin(x)).sum())(x)


@pytest.mark.parametrize("fn", [mapped, in_a_loop, in_a_branch, by_pmap, differentiated])
def test_in_loops_branches_and_gradients_it_runs_as_without_a_plan(fn) -> None:
    found = plan(fn, X, cluster="8xhost", baselines=False)
    assert found.mesh.axes == (("own", 8),)
    np.testing.assert_allclose(found.compile()(X), jax.jit(fn)(X), rtol=1e-6)


def loss(w, batch):
    return jnp.mean(mapped(batch @ w) ** 2)


SETTINGS: Any = {"cluster": "8xhost", "optimizer": optax.sgd(0.1), "baselines": False}
BATCH = np.ones((16, 8), np.float32)


def test_a_pipeline_of_it_is_refused_with_its_place() -> None:
    with pytest.raises(PlanError, match=r"nested_maps\.py:\d+: .* stage of a pipeline") as error:
        plan(loss, X, BATCH, pipeline=2, loss_reduction="mean", **SETTINGS)
    assert error.value.kind == "nested-map"
    assert error.value.remedy


def test_micro_batches_of_it_are_refused_or_named() -> None:
    with pytest.raises(PlanError, match=r"shard_map"):
        plan(loss, X, BATCH, microbatches=2, **SETTINGS)
    found = plan(loss, X, BATCH, microbatches=2, loss_reduction="mean", **SETTINGS)
    assert any("shard_map" in line and "different examples" in line for line in found.warnings)
