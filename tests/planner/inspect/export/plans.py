# pyright: basic
"""Plans to export, each made once: a training step, a loop over layers, tensor parallelism."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from planner import Plan, plan
from tests.planner.programs import slow_machine, struct


class Classifier(nn.Module):
    """A Flax model that knows nothing of plans."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(64)(x))
        x = x + nn.Dense(64)(nn.LayerNorm()(x))
        return nn.Dense(16)(x)


BATCH = {"x": struct(32, 24), "y": struct(32, dtype=jnp.int32)}


def loss(params, batch):
    logits = Classifier().apply({"params": params}, batch["x"])
    logits = jnp.asarray(logits)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def flax_parameters():
    return jax.eval_shape(Classifier().init, jax.random.key(0), BATCH["x"])["params"]


@functools.cache
def trained() -> Plan:
    """Free choice on four devices."""
    return plan(loss, flax_parameters(), BATCH, cluster=slow_machine(4), optimizer=optax.adam(1e-2))


def layers_loss(params, batch):
    def layer(x, w):
        return x + jax.nn.relu(x @ w["up"]) @ w["down"], None

    return jnp.mean((jax.lax.scan(layer, batch["x"], params)[0] - batch["y"]) ** 2)


LAYERS = {"up": struct(3, 16, 32), "down": struct(3, 32, 16)}
PAIRS = {"x": struct(8, 16), "y": struct(8, 16)}


@functools.cache
def layered() -> Plan:
    """A loop, micro-batches, a mesh of two axes."""
    return plan(
        layers_loss, LAYERS, PAIRS, cluster=slow_machine(8), optimizer=optax.sgd(1e-2),
        mesh=(2, 4), microbatches=2,
    )  # fmt: skip


def mlp_loss(params, batch):
    hidden = jax.nn.relu(batch["x"] @ params["up"])
    return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)


MLP = {"up": struct(16, 32), "down": struct(32, 16)}


def pinned(up: str, down: str, batch: str, **settings) -> Plan:
    """The two-layer MLP as a person would split it."""
    pins = (("params/up", up), ("params/down", down), ("batch/*", batch))
    return plan(
        mlp_loss, MLP, PAIRS, cluster=settings.pop("cluster", slow_machine(4)), pins=pins,
        baselines=False, **{"optimizer": optax.adam(1e-2), **settings},
    )  # fmt: skip


@functools.cache
def tensor_parallel() -> Plan:
    return pinned("[-,x]", "[x,-]", "[-,-]", mesh=(4,))


@functools.cache
def constant() -> Plan:
    """Neither arguments that can be split nor collectives."""
    return plan(lambda x: x + 1, struct(), cluster=slow_machine(2))


PLANS = {
    "constant": constant, "layered": layered, "tensor-parallel": tensor_parallel,
    "trained": trained,
}  # fmt: skip
