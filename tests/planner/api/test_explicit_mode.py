# pyright: basic
"""A training step in the style of MaxText: an Explicit mesh, typed arrays, reshards inside."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from planner import plan
from tests.planner.programs import slow_machine

MESH = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 3)
P = PartitionSpec
BATCH, TIME, WIDTH, HEADS, HIDDEN, WORDS, LAYERS = 8, 8, 16, 4, 32, 32, 2
ROWS = ("data", "fsdp")
SPECS = {
    "embed": ((WORDS, WIDTH), P("tensor", "fsdp")),
    "qkv": ((LAYERS, WIDTH, 3, HEADS, 4), P(None, "fsdp", None, "tensor")),
    "out": ((LAYERS, HEADS, 4, WIDTH), P(None, "tensor", None, "fsdp")),
    "up": ((LAYERS, WIDTH, HIDDEN), P(None, "fsdp", "tensor")),
    "down": ((LAYERS, HIDDEN, WIDTH), P(None, "tensor", "fsdp")),
    "head": ((WIDTH, WORDS), P("fsdp", "tensor")),
}
ADAM = optax.adam(1e-2)


def normalised(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def layer(x: Any, w: Any) -> Any:
    qkv = jnp.einsum(
        "btd,dchk->cbthk", normalised(x), w["qkv"], out_sharding=P(None, ROWS, None, "tensor")
    )
    q, k, v = qkv
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / 2.0
    causal = jnp.tril(jnp.ones((TIME, TIME), bool))
    weights = jax.nn.softmax(jnp.where(causal[None, None], scores, -1e9), -1)
    mixed = jnp.einsum("bhts,bshk->bthk", weights, v)
    x = x + jnp.einsum("bthk,hkd->btd", mixed, w["out"], out_sharding=P(ROWS))
    wide = jnp.einsum("btd,df->btf", normalised(x), w["up"], out_sharding=P(ROWS, None, "tensor"))
    return x + jnp.einsum("btf,fd->btd", jax.nn.silu(wide), w["down"], out_sharding=P(ROWS)), None


def loss(params: Any, tokens: Any, targets: Any) -> Any:
    x = params["embed"].at[tokens].get(out_sharding=P(ROWS))
    layers = {name: params[name] for name in ("qkv", "out", "up", "down")}
    x, _ = jax.lax.scan(layer, x, layers)
    logits = jnp.einsum(
        "btd,dv->btv", normalised(x), params["head"], out_sharding=P(ROWS, None, "tensor")
    )
    logits = jax.sharding.reshard(logits, P(ROWS))
    chosen = jnp.sum(logits * jax.nn.one_hot(targets, WORDS), -1)
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def step(params: Any, state: Any, tokens: Any, targets: Any) -> Any:
    value, gradient = jax.value_and_grad(loss)(params, tokens, targets)
    changes, state = ADAM.update(gradient, state, params)
    return optax.apply_updates(params, changes), state, value


def arguments() -> Any:
    draw = np.random.default_rng(0)

    def typed(x: Any, spec: Any) -> Any:
        return jax.device_put(jnp.asarray(x), NamedSharding(MESH, spec))

    params = {
        name: typed(draw.normal(size=shape).astype(np.float32) * 0.1, spec)
        for name, (shape, spec) in SPECS.items()
    }
    words = [typed(draw.integers(0, WORDS, (BATCH, TIME)), P(ROWS)) for _ in range(2)]
    return params, ADAM.init(params), *words


@pytest.mark.filterwarnings("ignore:.*int64.*")
def test_a_step_in_explicit_mode_is_planned_as_it_is_written_and_runs_equally() -> None:
    with jax.set_mesh(MESH):
        args = arguments()
        want = jax.jit(step)(*args)
        found = plan(step, *args, cluster=slow_machine(), baselines=False)
    assert found.mesh.axes == (("data", 2), ("fsdp", 2), ("tensor", 2))
    assert found.specs[0] == {
        name: P(*spec, *[None] * (len(shape) - len(spec))) for name, (shape, spec) in SPECS.items()
    }
    assert found.specs[1][0].mu["embed"] == P("tensor", "fsdp")
    assert found.specs[2] == P(ROWS, None)
    got = found.compile()(*args)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4)
