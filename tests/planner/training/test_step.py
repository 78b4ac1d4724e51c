# pyright: basic
"""The planner's training step: equal to the hand-written one, with any number of micro-batches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ir.trace import trace
from planner.common.errors import PlanError
from planner.training.step import build_step
from planner.training.training import Training
from tests.helpers_exhaustive import usual

BATCH, WIDTH = 8, 4
ADAMW = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))


def make(seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    params = {
        "w1": jnp.asarray(rng.normal(size=(WIDTH, 6)), dtype),
        "w2": jnp.asarray(rng.normal(size=(6, 1)), dtype),
    }
    batch = {
        "x": jnp.asarray(rng.normal(size=(BATCH, WIDTH)), dtype),
        "y": jnp.asarray(rng.normal(size=(BATCH,)), dtype),
    }
    return params, batch


def errors(params, batch):
    return ((jnp.tanh(batch["x"] @ params["w1"]) @ params["w2"])[:, 0] - batch["y"]) ** 2


def mean_loss(params, batch):
    return errors(params, batch).mean()


def sum_loss(params, batch):
    return errors(params, batch).sum()


def by_hand(loss_fn, optimizer, params, batch, steps=2):
    state = optimizer.init(params)
    for _ in range(steps):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params, state, loss


def run(built, params, batch, steps=2):
    step = jax.jit(built.fn)
    params, state, result = step(params, built.init(params), batch)
    for _ in range(steps - 1):
        params, state, result = step(params, state, batch)
    return params, state, result


def assert_close(a, b, rtol=2e-5):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=1e-6), a, b)


@pytest.mark.parametrize("optimizer", [optax.sgd(0.1), ADAMW], ids=["sgd", "clipped adamw"])
@pytest.mark.parametrize(("loss", "reduction"), [(mean_loss, "mean"), (sum_loss, "sum")])
@pytest.mark.parametrize("count", usual([1, 2, 4, 8], [1, 4]))
def test_equals_the_hand_written_step(optimizer, loss, reduction, count) -> None:
    params, batch = make()
    built = build_step(loss, params, batch, optimizer, microbatches=count)
    assert built.reduction == ("auto" if count == 1 else reduction)
    assert built.warnings == ()
    assert_close(run(built, params, batch), by_hand(loss, optimizer, params, batch))


def test_structs_suffice_and_give_the_same_types() -> None:
    params, batch = jax.eval_shape(lambda: make())
    built = build_step(mean_loss, params, batch, ADAMW, microbatches=2)
    state = jax.eval_shape(ADAMW.init, params)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), built.opt_state_structs) == jax.tree.map(
        lambda a: (a.shape, a.dtype), state
    )
    new = jax.eval_shape(built.fn, params, state, batch)
    assert jax.tree.structure(new[:2]) == jax.tree.structure((params, state))


def test_carries_are_additions_of_carry_and_gradient() -> None:
    params, batch = make()
    built = build_step(mean_loss, params, batch, ADAMW, microbatches=4)
    graph = trace(built.fn, params, built.opt_state_structs, batch).graph
    (scan,) = [node for node in graph.nodes if node.op == "scan"]
    body, attrs = scan.bodies[0], cast(dict[str, int], dict(scan.attrs))
    first = len(body.inputs) - len(scan.inputs) + attrs["num_consts"]
    made_by = {v: node for i, node in enumerate(body.nodes) for v in body.values_of(i)}
    assert attrs["num_carry"] == 1 + len(jax.tree.leaves(params))
    for i, output in enumerate(body.outputs[: attrs["num_carry"]]):
        node = made_by[cast(int, output)]
        assert node.op == "add"
        assert node.inputs[0] == first + i


def test_half_precision_gradients_are_added_in_float32() -> None:
    params, batch = make(dtype=jnp.bfloat16)
    built = build_step(mean_loss, params, batch, optax.sgd(0.1), microbatches=8)
    found, _, loss = run(built, params, batch, steps=1)
    assert {leaf.dtype for leaf in jax.tree.leaves((found, loss))} == {jnp.dtype("bfloat16")}
    wide = jax.tree.map(lambda a: a.astype(jnp.float32), (params, batch))
    expected, _, _ = by_hand(mean_loss, optax.sgd(0.1), *wide, steps=1)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a.astype(np.float32), b, rtol=0.02, atol=0.02),
        found, expected,
    )  # fmt: skip


@pytest.mark.parametrize("count", usual([1, 2, 4], [1, 4]))
def test_aux_is_what_the_whole_batch_gives(count: int) -> None:
    def loss(params, batch):
        each = errors(params, batch)
        aux = {
            "each": each,
            "tokens": jnp.repeat(batch["x"], 2, axis=0).reshape(-1, 2 * WIDTH).T,
            "flat": batch["x"].reshape(-1),
            "worst": each[:, None] * params["w1"][0],
            "count": jnp.sum(each > 1),
            "rate": jnp.mean(each > 1),
            "examples": len(each),
            "norm": jnp.sum(params["w1"] ** 2),
            "zero": 0.0,
        }
        return each.mean(), aux

    params, batch = make()
    built = build_step(loss, params, batch, ADAMW, has_aux=True, microbatches=count)
    _, _, (value, aux) = run(built, params, batch, steps=1)
    assert_close((value, aux), loss(params, batch))


def test_aux_that_cannot_be_put_together() -> None:
    def loss(params, batch):
        each = errors(params, batch)
        return each.mean(), {"largest": each.max()}

    params, batch = make()
    build = partial(build_step, loss, params, batch, ADAMW, has_aux=True)
    assert build().warnings == ()
    with pytest.raises(PlanError, match=r"largest.*maximum"):
        build(microbatches=2)
    warning = build(microbatches=2, loss_reduction="mean").warnings[0]
    assert "'1/largest' is made a mean of micro-batches" in warning


def test_leaves_without_gradient_stay_as_they_are() -> None:
    params, batch = make()
    params |= {"steps": jnp.asarray([3, 5]), "on": jnp.asarray(True), "key": jax.random.key(7)}

    def loss(params, batch):
        return errors(params, batch).mean() * params["steps"][0] * params["on"]

    for count in (1, 2):
        built = build_step(loss, params, batch, ADAMW, microbatches=count)
        found, _, _ = run(built, params, batch)
        assert (found["steps"] == params["steps"]).all()
        assert found["on"].dtype == bool
        assert found["key"] == params["key"]
        assert "create it with the step's init" in built.warnings[0]
        moving = {name: params[name] for name in ("w1", "w2")}
        expected = by_hand(lambda p, b: 3 * mean_loss(p, b), ADAMW, moving, batch)[0]
        assert_close({name: found[name] for name in moving}, expected)


def test_an_optimizer_that_masks_all_leaves_itself() -> None:
    params, batch = make()
    params["steps"] = jnp.asarray(3)
    masked = optax.masked(optax.adamw(1e-2), {"w1": True, "w2": True, "steps": False})
    built = build_step(mean_loss, params, batch, masked)
    assert built.warnings == ()
    state = masked.init(params)
    found, after, _ = built.fn(params, state, batch)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert found["steps"] == 3
    assert (found["w1"] != params["w1"]).any()


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_keys_are_the_same_for_all_parts(make_key) -> None:
    params, batch = make()
    batch |= {"key": make_key(1), "rate": jnp.float32(0.5)}

    def loss(params, batch):
        kept = jax.random.bernoulli(batch["key"], batch["rate"], batch["x"].shape)
        some = jax.random.bernoulli(batch["key"], batch["rate"], batch["x"].shape[1:])
        return mean_loss(params, {**batch, "x": jnp.where(kept & some, batch["x"], 0)})

    for count in (1, 2, 4):
        built = build_step(loss, params, batch, ADAMW, microbatches=count)
        assert_close(run(built, params, batch), by_hand(loss, ADAMW, params, batch))


def test_keys_of_examples_and_another_batch_axis() -> None:
    params, batch = make()
    batch = {
        "x": batch["x"].T,
        "y": batch["y"][None],
        "keys": jax.random.split(jax.random.key(0), 8),
    }
    batch["keys"] = batch["keys"][None]

    def loss(params, batch):
        noise = jax.vmap(lambda key: jax.random.normal(key, (WIDTH,)))(batch["keys"][0])
        return mean_loss(params, {"x": batch["x"].T + noise, "y": batch["y"][0]})

    built = build_step(loss, params, batch, ADAMW, microbatches=4, batch_axis=1)
    assert_close(run(built, params, batch), by_hand(loss, ADAMW, params, batch))


def test_rules_that_follow_the_loss() -> None:
    params, batch = make()
    optimizer = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau())
    built = build_step(mean_loss, params, batch, optimizer, microbatches=2)
    assert run(built, params, batch)[2] < mean_loss(params, batch)


def uneven(params, batch):
    return batch["x"].mean() * params["w1"].sum() + batch["y"].mean()


PARAMS, DATA = make()


@pytest.mark.parametrize(
    ("kind", "message", "change"),
    [
        ("bad-batch", "8 examples do not divide into 3", {"microbatches": 3}),
        (
            "bad-batch",
            "batch/x 8, batch/y 4",
            {"batch": {**DATA, "y": DATA["y"][:4]}, "loss_fn": uneven, "microbatches": 2},
        ),
        ("bad-batch", "batch/y none", {"batch_axis": 1, "microbatches": 2}),
        (
            "bad-batch",
            "found: none",
            {"batch": {}, "loss_fn": lambda p, b: p["w1"].sum(), "microbatches": 2},
        ),
        (
            "bad-batch",
            "may be 2 examples or a raw random key",
            {
                "batch": {**jax.tree.map(lambda a: a[:2], DATA), "key": jax.random.PRNGKey(0)},
                "microbatches": 2,
            },
        ),
        ("bad-option", "microbatches: must be", {"microbatches": 0}),
        ("bad-option", "loss_reduction: must be", {"loss_reduction": "max"}),
        ("bad-option", "batch_axis: must be", {"batch_axis": -1}),
        ("bad-optimizer", "no functions init and update", {"optimizer": "adam"}),
        ("bad-optimizer", "fails on these parameters", {"optimizer": optax.lbfgs()}),
        ("bad-loss", r"returns float32\[8\]", {"loss_fn": errors}),
        ("bad-loss", r"returns int32\[\]", {"loss_fn": lambda p, b: jnp.int32(1)}),
        ("bad-loss", "set has_aux", {"loss_fn": lambda p, b: (jnp.sum(p["w1"]), 1)}),
        ("bad-loss", r"must return \(loss, aux", {"has_aux": True}),
        ("bad-loss", "fails on the given arguments", {"loss_fn": lambda p, b: b["z"].sum()}),
        (
            "bad-argument",
            "none of the parameters",
            {"params": {"n": 1}, "loss_fn": lambda p, b: b["y"].sum() * p["n"]},
        ),
    ],
)
def test_errors(kind: str, message: str, change: dict) -> None:
    usual = {"loss_fn": mean_loss, "params": PARAMS, "batch": DATA, "optimizer": ADAMW}
    with pytest.raises(PlanError, match=message) as caught:
        build_step(**(usual | change))
    assert caught.value.kind == kind
    assert caught.value.remedy or kind == "bad-option"


def test_a_loss_that_knows_its_batch_size() -> None:
    params, batch = make()
    fixed = jnp.ones(BATCH)
    with pytest.raises(PlanError, match="does not trace with"):
        build_step(lambda p, b: (errors(p, b) * fixed).mean(), params, batch, ADAMW, microbatches=2)


def test_a_step_of_one_micro_batch_is_made_once_for_each_loss() -> None:
    training = Training(mean_loss, make(), ADAMW, False, 0, "loss")
    step = training.step(1, "auto")
    assert replace(training).step(1, "auto") is step
    assert replace(training, loss_fn=sum_loss).step(1, "auto") is not step
    assert training.step(2, "auto").fn is not training.step(2, "auto").fn
