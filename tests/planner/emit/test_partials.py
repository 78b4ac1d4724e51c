# pyright: basic
"""Partial sums are reduced before what is not exact for their terms."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ir import IRError
from ir.trace import trace
from planner import plan
from planner.emit import compile_plan
from tests.planner.emit.plans import LINE, lowered, random_decisions

# The terms of four devices are too large for 16 bits, those of the other four as much too small.
HALVES = np.repeat([3e3, -3e3], 256)[:, None] * np.ones((512, 8))


@pytest.mark.parametrize("reduce", [jnp.sum, jnp.mean])
def test_sums_are_rounded_after_the_reduction(reduce) -> None:
    def f(h):
        return reduce(h, axis=0)

    h = jnp.asarray(HALVES + 1, jnp.float16)
    found = plan(f, h, cluster="8xhost", mesh=(8,), pins=(("h", "[8,-]"),), baselines=False)
    assert any(c.kind in ("all-reduce", "reduce-scatter") for c in found.collectives)
    np.testing.assert_array_equal(found.compile()(h), jax.jit(f)(h))


@pytest.mark.parametrize("seed", range(5))
def test_infinite_factors_meet_the_sum(seed: int) -> None:
    def f(a, b, z):
        product = a @ b
        return product * z, product / z, z * product.astype(jnp.bfloat16).astype(jnp.float32)

    a = np.where(np.arange(16) % 2, 3.0, -2.0).astype(np.float32) * np.ones((8, 16), np.float32)
    b, z = np.ones((16, 8), np.float32), np.float32(0)
    traced = trace(f, a, b, z)
    run = compile_plan(traced, lowered(traced, random_decisions(traced.graph, LINE, seed)))
    for z in (0.0, -0.0, np.inf, -np.inf, np.nan, 3e38):
        args = a, b, np.float32(z)
        for x, y in zip(run(*args), jax.jit(f)(*args), strict=True):
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_a_role_that_is_not_exact_is_refused() -> None:
    traced = trace(lambda x: x.astype(jnp.float16), np.ones(8, np.float32))
    decisions = random_decisions(traced.graph, LINE, 0)
    with pytest.raises(IRError, match="are not legal"):
        lowered(traced, replace(decisions, ops={(0,): ("@0",)}))


def test_gradients_of_scanned_layers_are_reduced_once_a_step() -> None:
    def loss(params, batch):
        def layer(x, w):
            return jnp.tanh(x @ w), None

        return jnp.mean(jax.lax.scan(layer, batch, params["w"])[0] ** 2)

    keys = jax.random.split(jax.random.key(0))
    params = {"w": 0.1 * jax.random.normal(keys[0], (3, 64, 64))}
    batch = jax.random.normal(keys[1], (256, 64))
    found = plan(
        loss, params, batch, optimizer=optax.sgd(0.1), microbatches=4, cluster="8xhost", mesh=(8,),
        pins=(("params/*", "[-,-,-]"), ("batch", "[8,-]")), baselines=False,
    )  # fmt: skip
    sums = [c for c in found.collectives if c.bytes > 4096]
    assert [(c.kind, c.count) for c in sums] == [("all-reduce", 1)]
    wanted = params["w"] - 0.1 * jax.grad(loss)(params, batch)["w"]
    new = found.compile()(params, optax.sgd(0.1).init(params), batch)[0]  # donates them
    np.testing.assert_allclose(new["w"], wanted, rtol=1e-5, atol=1e-6)
