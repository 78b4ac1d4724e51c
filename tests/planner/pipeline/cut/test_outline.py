# pyright: basic
"""Stages are traced alike if what they compute is equal, and only then."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

from ir import digest
from planner.pipeline.cut.opened_loss import cut_of, opened
from planner.pipeline.cut.stage_training_step import stage_training_step

SQUARE = jax.ShapeDtypeStruct((8, 8), jnp.float32)
TABLE = jnp.arange(64.0).reshape(8, 8)


def doubled(slope):
    """max(2 x, 0), whose derivative is said to be `slope`."""

    @jax.custom_jvp
    def run(x):
        return jnp.maximum(2 * x, 0.0)

    run.defjvp(lambda primals, tangents: (run(*primals), slope * tangents[0]))
    return run


def with_table(x):
    return x + TABLE


def with_other_table(x):
    return x + (TABLE + 1.0)


# Two functions between products, and whether stages that have them compute the same.
PAIRS = [
    (jax.nn.relu, jax.nn.relu, True),
    (doubled(2.0), doubled(2.0), True),
    (doubled(2.0), doubled(3.0), False),
    (lambda x: x * 2.0, lambda x: x * 2.0, True),
    (lambda x: x * 2.0, lambda x: x * 3.0, False),
    (lambda x: jnp.cumsum(x, 0), lambda x: jnp.cumsum(x, 1), False),
    (lambda x: x - x.T, lambda x: x.T - x, False),
    (with_table, with_table, True),
    (with_table, with_other_table, False),
    (lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * y, x),
     lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * y, x), True),
    (lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * y, x),
     lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * x, x), False),
]  # fmt: skip


def opened_of(loss, params, batch=None):
    given = {"x": SQUARE} if batch is None else batch
    return opened(
        loss, params, given, optax.adam(1e-3), microbatches=1, loss_reduction="mean", has_aux=False
    )


def stages_of(functions, kind):
    """Outlines and digests of equal stages but for one function in each."""

    def loss(params, batch):
        x = batch["x"] @ params["in"]
        for k, function in enumerate(functions):
            x = x @ params[f"a{k}"]
            x = function(x) @ params[f"b{k}"]
        return jnp.mean(jnp.square(x @ params["out"]))

    names = ["in", "out", *(f"{n}{k}" for n in "ab" for k in range(len(functions)))]
    made = opened_of(loss, dict.fromkeys(names, SQUARE))
    at = [s for s, slot in enumerate(made.chain.slots) if slot.op == "dot_general"]
    cuts = (0, *at[1::2], len(made.chain.slots))
    cut = cut_of(made, cuts, (kind,) * (len(cuts) - 1))
    return [
        (cut.outline(s), digest(
            stage_training_step(made, cut, s, optax.adam(1e-3)).traced.graph
        ))
        for s in range(1, len(functions) + 1)
    ]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "same"), PAIRS)
@pytest.mark.parametrize("kind", ["none", "full"])
def test_stages_that_compute_the_same_have_equal_outlines_and_traces(first, second, same, kind):
    (one, traced), (other, also) = stages_of((first, second), kind)
    assert (one == other) == same
    if same:
        assert hash(one) == hash(other)
        assert traced == also


def test_structs_are_those_of_what_stages_compute():
    def layer(x, w):
        return jnp.tanh(x @ w), x.sum()

    def loss(params, batch):
        x, sums = jax.lax.scan(layer, batch["x"] @ params["in"], params["layers"])
        return jnp.mean(jnp.square(x)) + 1e-3 * jnp.mean(sums)

    params = {"in": SQUARE, "layers": jax.ShapeDtypeStruct((6, 8, 8), jnp.float32)}
    made = opened_of(loss, params)
    places = (0, *made.chain.places(), len(made.chain.slots))
    cut = cut_of(made, places)
    assert len(cut.stages) > 4
    for stage in cut.stages:
        given = [
            [jax.ShapeDtypeStruct((use.high - use.low, 8, 8) if use.high > 0 else (8, 8),
                                  jnp.float32) for use in stage.params],
            [SQUARE for _ in stage.batch],
            [cut.structs[key] for key in stage.takes],
        ]  # fmt: skip
        gives = jax.eval_shape(stage.run, *given)
        assert [cut.structs[key] for key in stage.gives] == list(gives)
    alike = [cut.outline(s) for s in range(len(cut.stages))]
    assert len({*alike}) < len(alike)  # rounds of the loop
