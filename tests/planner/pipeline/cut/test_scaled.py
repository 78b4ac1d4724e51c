# pyright: basic
"""Programs of stages at a size of micro-batch, told from two others, are those that are traced."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.pipeline_models import gpt, moe, wide_resnet
from ir import digest, show
from planner.pipeline.cut.opened_loss import cut_of, opened
from planner.pipeline.cut.scaled import Sample, Samples, Size, scaled_stage
from planner.pipeline.cut.stage_steps import RECOMPUTE
from planner.pipeline.cut.stage_training_step import stage_training_step
from tests.helpers_exhaustive import usual

BATCH, WIDTH = 32, 8
COUNTS = (2, 4, 8, 32)


def chain(middle):
    """Layers around a function of the values between them; a loss, parameters and batch."""

    def loss(params, batch):
        x = jnp.tanh(batch["x"] @ params[0])
        x = jnp.tanh(middle(x) @ params[1])
        return jnp.mean((x @ params[2]) ** 2)

    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    return loss, [square] * 3, {"x": jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)}


def runs(case, count, kind):
    """The loss at a size, cut at every place of the largest."""
    loss, params, batch = case

    def at(count):
        return opened(
            loss, params, batch, optax.adam(1e-3), microbatches=count, loss_reduction="mean"
        )

    first = at(COUNTS[0])
    places = (0, *first.chain.places(), len(first.chain.slots))
    made = at(count)
    return made, cut_of(made, places, (kind,) * (len(places) - 1))


def traced_at(case, kind="none", *, exact=True):
    """Number of stages that are traced at each size; others are those that tracing gives.

    With `exact`, where they take entries of an array from is the same too.
    """
    samples, found = Samples(), dict[int, int]()
    for count in COUNTS:
        made, cut = runs(case, count, kind)
        traced = []

        def trace(made, cut, s, traced=traced):
            traced.append(s)
            stage = stage_training_step(made, cut, s, optax.adam(1e-3))
            return stage, digest(stage.traced.graph)

        stages = range(len(cut.stages))
        told = [samples.stage(made, cut, s, (s, kind), trace) for s in stages]
        found[count] = len(traced)
        for s, (stage, name) in enumerate(told):
            assert name == digest(stage.traced.graph)
            assert stage.body.graph == stage.traced.graph.nodes[stage.loop].bodies[0]
            if exact:
                assert s in traced or name == trace(made, cut, s)[1]
            else:
                assert placeless(stage) == placeless(trace(made, cut, s)[0])
    return found


def placeless(stage):
    """The text of a stage's program without the places of slices."""
    return re.sub(r"(start|limit)_indices=\([^)]*\)", "", show(stage.traced.graph))


MODELS = {
    "GPT": lambda: gpt(2, 64, 128, 16, BATCH),
    "mixture of experts": lambda: moe(2, 64, 4, BATCH),
    "convolutions": lambda: wide_resnet(4, BATCH, 32),
}


EACH = [(model, kind) for model in MODELS for kind in RECOMPUTE]


@pytest.mark.parametrize("one", usual(EACH, [("GPT", "selective")]))
def test_two_sizes_tell_the_others(one: tuple[str, str]) -> None:
    model, kind = one
    found = traced_at(MODELS[model](), kind)
    assert found[8] == 0
    assert found[32] == found[2] > 0  # single examples


def two_ways(x):
    return jnp.tanh(x) if len(x) > 4 else jnp.sin(x)  # 4 in each of 8 micro-batches


def squares(x):
    return x * jnp.sum(jnp.tile((x @ x.T).reshape(-1), 2))


def bounded(x):
    return len(x) > 4


def groups(x):
    """Differences from means of groups, of which there is one in each of 8 micro-batches."""
    parts = x.reshape(max(1, len(x) // 4), -1, WIDTH)
    return (parts - jnp.mean(parts, 1, keepdims=True)).reshape(x.shape)


def backwards(x):
    return np.arange(WIDTH)[:: 1 if bounded(x) else -1].copy()


def powers(x) -> Any:
    return np.int64(2 + bounded(x))


KEYS = jax.random.key(0), jax.random.key(1)
REFUSED = {
    "another program below a size": two_ways,
    "another captured array": lambda x: x * np.full((WIDTH,), 1.5 + bounded(x), np.float32),
    "another captured array of JAX": lambda x: x * jnp.asarray(backwards(x), jnp.float32),
    "other captured indices": lambda x: x[:, backwards(x)],
    "another captured key": lambda x: x * jax.random.uniform(KEYS[bounded(x)], (WIDTH,)),
    "another parameter": lambda x: jax.lax.integer_pow(x, powers(x)),
    "one group": groups,
    "dimensions that are squares": squares,
    "a reciprocal": lambda x: x * (1.0 / len(x)),
    "an array of its size": lambda x: x + np.arange(len(x), dtype=np.float32)[:, None],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_two_sizes_do_not_tell_is_traced(name: str) -> None:
    assert traced_at(chain(REFUSED[name]))[8] > 0


FIXED = np.arange(WIDTH, dtype=np.float32)
TOLD = {
    "no captured array": jnp.tanh,
    "a captured array": lambda x: x * FIXED,
    "an array made in each trace": lambda x: x * FIXED.copy(),
    "a captured key": lambda x: x * jax.random.uniform(KEYS[0], (WIDTH,)),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_a_chain_is_told(name: str) -> None:
    assert traced_at(chain(TOLD[name]))[8] == 0


def dropout(layers):
    """A loop over layers with keys of random numbers from one array; a loss, parameters, batch."""

    def loss(params, batch):
        keys = jax.random.split(batch["key"], layers)

        def layer(x, given):
            w, key = given
            return x + jnp.where(jax.random.bernoulli(key, 0.9, x.shape), jnp.tanh(x @ w), 0), None

        x, _ = jax.lax.scan(layer, batch["x"], (params[0], keys))
        return jnp.mean((x @ params[1]) ** 2)

    weights = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((layers, WIDTH, WIDTH), (WIDTH, 4))]
    rows = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    return loss, weights, {"x": rows, "key": jax.eval_shape(lambda: jax.random.key(0))}


@pytest.mark.parametrize("kind", ["none", "full"])
def test_layers_that_slice_one_array_are_traced_once(kind: str) -> None:
    few, many = (traced_at(dropout(n), kind, exact=False) for n in (4, 7))
    assert few == many
    assert few[8] == 0


def test_single_examples_tell_nothing() -> None:
    case, made = chain(jnp.tanh), []
    for count in (16, 32, 8):
        loss, cut = runs(case, count, "none")
        stage = stage_training_step(loss, cut, 1, optax.adam(1e-3))
        made.append(Sample(Size(count, BATCH // count), cut.outline(1), stage))
    assert scaled_stage(made[0], made[1], made[2].size, made[2].outline) is None
