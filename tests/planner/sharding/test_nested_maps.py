# pyright: basic
"""Functions that map over devices by themselves are refused while planning, with their place."""

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


def differentiated(x):
    return jax.grad(lambda x: jax.checkpoint(mapped)(jnp.sin(x)).sum())(x)


def by_pmap(x):
    return jax.pmap(jnp.sin)(x)


@pytest.mark.parametrize("fn", [mapped, in_a_loop, in_a_branch, differentiated, by_pmap])
def test_one_error_that_says_where(fn) -> None:
    with pytest.raises(
        PlanError, match=r"test_nested_maps\.py:\d+: .* uses jax\.shard_map"
    ) as error:
        plan(fn, X, cluster="8xhost")
    assert error.value.kind == "nested-map"
    assert error.value.remedy


@pytest.mark.parametrize("settings", [{}, {"pipeline": 2}, {"microbatches": 2}])
def test_of_a_loss(settings: Any) -> None:
    def loss(w, batch):
        return jnp.mean(mapped(batch @ w) ** 2)

    with pytest.raises(PlanError, match=r"uses jax\.shard_map"):
        plan(loss, X, np.ones((16, 8), np.float32), cluster="8xhost", optimizer=optax.sgd(0.1),
             loss_reduction="mean", **settings)  # fmt: skip
