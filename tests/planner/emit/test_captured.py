# pyright: basic
"""Arrays that a loss has captured are in every stage that reads them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from planner import plan
from tests.planner.programs import slow_machine

ROW = np.linspace(-1.0, 1.0, 16, dtype=np.float32)
TABLE = np.asarray(jax.random.normal(jax.random.key(1), (16, 16))) / 4


def loss(params, batch):
    x = jnp.tanh(batch["x"] @ params["in"]) + ROW
    x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w + ROW), None), x @ TABLE, params["layers"])
    return jnp.mean(jnp.square(x @ params["out"] * jnp.asarray(ROW)))


@pytest.mark.parametrize("runtime", ["dispatch", "scan"])
def test_stages_have_the_arrays_that_the_loss_has_captured(runtime):
    keys, optimizer = jax.random.split(jax.random.key(0), 4), optax.adam(1e-2)
    params = {
        "in": jax.random.normal(keys[0], (16, 16)) / 4,
        "layers": jax.random.normal(keys[1], (4, 16, 16)) / 4,
        "out": jax.random.normal(keys[2], (16, 16)) / 4,
    }
    batch = {"x": jax.random.normal(keys[3], (8, 16))}
    made = plan(
        loss, params, batch, optimizer=optimizer, cluster=slow_machine(4), pipeline=2,
        microbatches=2, schedules=("1f1b",), baselines=False, substitutions=False,
    )  # fmt: skip
    assert len(made.stages) == 2
    step = made.compile(runtime=runtime)
    grads = jax.grad(loss)(params, batch)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    expected = jax.device_get(optax.apply_updates(params, updates))
    found = jax.device_get(step(params, optimizer.init(params), batch)[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
                 found, expected)  # fmt: skip
