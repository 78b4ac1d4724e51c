# pyright: basic
"""A plan at work: compiled, placed, initialised, bound, and refused where it does not fit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from planner import Plan, PlanError, load, plan
from tests.planner.programs import (  # fmt: skip
    BATCH,
    PARAMS,
    X,
    array,
    filled,
    loss_and_aux,
    mean_loss,
    mlp,
    slow_machine,
    struct,
    sum_loss,
)

PINS = (("params/w1", "[-,y]"), ("x", "[x,-]"))


def infer(params, x):
    return mlp(params, x)


@cache
def planned(**settings) -> Plan:
    """A plan that tests share; none changes it."""
    return plan(infer, PARAMS, X, cluster="8xhost", mesh=(2, 4), pins=PINS, **settings)


@cache
def trained(loss=mean_loss, optimizer=None, **settings) -> Plan:
    rule = optimizer or optax.adamw(1e-2)
    settings = {"cluster": slow_machine(), "mesh": (2, 4), "baselines": False} | settings
    return plan(loss, PARAMS, BATCH, optimizer=rule, **settings)


# --- running -----------------------------------------------------------------------------------


def test_compiled_function_computes_the_same() -> None:
    p = planned(baselines=False)
    params, x = filled(PARAMS), array(8, 16)
    step = p.compile()
    placed = p.shard(params)
    assert placed["w1"].sharding.spec == p.in_shardings[0]["w1"]
    found = step(placed, p.shard(x))
    assert found.sharding.spec == p.out_shardings
    np.testing.assert_allclose(found, infer(params, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(step(params, np.asarray(x)), found, rtol=1e-6)


def test_init_creates_what_it_makes_sharded() -> None:
    p = planned(baselines=False)

    def make(key):
        return {name: jax.random.normal(key, s.shape) for name, s in PARAMS.items()}

    params = p.init(make, jax.random.key(0))
    assert params["w1"].sharding.spec == p.in_shardings[0]["w1"]
    assert params["w1"].addressable_shards[0].data.shape == (16, 8)
    np.testing.assert_array_equal(params["w1"], make(jax.random.key(0))["w1"])


def reference(loss, rule, steps: int, has_aux: bool = False):
    @jax.jit
    def step(params, state, batch):
        value, grads = jax.value_and_grad(loss, has_aux=has_aux)(params, batch)
        updates, state = rule.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    params = filled(PARAMS)
    state, values = rule.init(params), []
    for _ in range(steps):
        params, state, value = step(params, state, filled(BATCH))
        values.append(value)
    return params, state, values


@pytest.mark.parametrize(("loss", "microbatches"), [
    (mean_loss, 4), (sum_loss, 1),
    *(pytest.param(*more, marks=pytest.mark.exhaustive)
      for more in ((mean_loss, 1), (mean_loss, 2), (sum_loss, 2), (sum_loss, 4))),
])  # fmt: skip
def test_training_step_is_the_unsharded_one(loss, microbatches: int) -> None:
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    p = trained(loss, rule, microbatches=microbatches)
    assert p.microbatches == microbatches
    step = p.compile()
    params, values = p.shard(filled(PARAMS)), []
    state = p.init(rule.init, params)
    for _ in range(3):
        params, state, value = step(params, state, p.shard(filled(BATCH)))
        values.append(value)
    expected, _, losses = reference(loss, rule, 3)
    np.testing.assert_allclose(values, losses, rtol=1e-4)
    for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


def test_training_step_donates_and_ties_its_state() -> None:
    p = trained()
    assert jax.tree.leaves(p.in_shardings[:2]) == jax.tree.leaves(p.out_shardings[:2])
    params = p.shard(filled(PARAMS))
    state = p.init(optax.adamw(1e-2).init, params)
    p.compile()(params, state, p.shard(filled(BATCH)))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((params, state)))


def test_auxiliary_results_come_back() -> None:
    rule = optax.sgd(1e-2)
    p = trained(loss_and_aux, rule, has_aux=True)
    state = rule.init(filled(PARAMS))
    _, _, (value, aux) = p.compile()(filled(PARAMS), state, filled(BATCH))
    _, _, ((expected, expected_aux),) = reference(loss_and_aux, rule, 1, has_aux=True)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(aux["norm"], expected_aux["norm"], rtol=1e-5)


def test_examples_along_another_dimension() -> None:
    def loss(params, batch):
        return jnp.mean(mlp(params, batch.T) ** 2)

    p = plan(
        loss, PARAMS, struct(16, 8), optimizer=optax.sgd(0.1), batch_axis=1, microbatches=2,
        cluster=slow_machine(), mesh=(8,), baselines=False,
    )  # fmt: skip
    state = optax.sgd(0.1).init(filled(PARAMS))
    batch = array(16, 8)
    _, _, found = p.compile()(filled(PARAMS), state, batch)
    np.testing.assert_allclose(found, loss(filled(PARAMS), batch), rtol=1e-5)


def test_micro_batches_are_added_until_it_fits() -> None:
    def loss(params, batch):
        hidden = jnp.sin(batch @ params) @ jnp.ones((16, 4096))
        return jnp.mean(jnp.sin(hidden) ** 2)

    wanted = {"optimizer": optax.sgd(0.1), "cluster": "1xhost", "baselines": False}
    free = plan(loss, struct(16, 16), struct(256, 16), **wanted)
    tight = plan(
        loss, struct(16, 16), struct(256, 16), memory_bytes=int(free.peak_bytes * 0.6), **wanted
    )
    assert free.microbatches == 1
    assert tight.microbatches > 1
    assert tight.peak_bytes <= free.peak_bytes * 0.6


def test_jitted_and_partial_functions_are_functions() -> None:
    donating = jax.jit(lambda x, y: x + y, donate_argnums=0)
    p = plan(donating, X, X, cluster="8xhost", baselines=False)
    x = array(8, 16)
    np.testing.assert_allclose(p.compile()(x, array(8, 16)), 2 * array(8, 16), rtol=1e-6)

    class Model:
        def __call__(self, x):
            return x * 2

    for fn in (Model(), jax.tree_util.Partial(lambda s, x: s * x, 2.0)):
        p = plan(fn, X, cluster="8xhost", baselines=False)
        np.testing.assert_allclose(p.compile()(array(8, 16)), 2 * array(8, 16), rtol=1e-6)


def test_donated_argument_is_reused() -> None:
    p = plan(lambda x: x + 1, X, cluster="8xhost", donate_argnums=0, baselines=False)
    x = p.shard(array(8, 16))
    p.compile()(x)
    assert x.is_deleted()


# --- misuse of a plan --------------------------------------------------------------------------


def refused(kind: str, call, *words: str) -> None:
    with pytest.raises(PlanError) as found:
        call()
    assert found.value.kind == kind
    assert found.value.where
    assert found.value.remedy
    for word in words:
        assert word in str(found.value)


@pytest.fixture(name="saved")
def _saved(tmp_path: Path) -> Path:
    planned(baselines=False).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_loaded_plan_has_no_function_yet(saved: Path) -> None:
    q = load(saved)
    uses = (
        q.compile,
        lambda: q.in_shardings,
        lambda: q.out_shardings,
        lambda: q.shard(filled(PARAMS)),
        lambda: q.init(lambda: filled(PARAMS)),
    )
    for use in uses:
        refused("not-bound", use, "bind(fn, *args)")


def test_binding_says_what_differs(saved: Path) -> None:
    q = load(saved)
    other = {**PARAMS, "w3": X}
    refused("differs", lambda: q.bind(infer, other, X), "params/w3", "not in the plan")
    less = {k: v for k, v in PARAMS.items() if k != "b1"}
    refused("differs", lambda: q.bind(lambda params, x: x, less, X), "params/b1", "missing")
    refused("differs", lambda: q.bind(infer, PARAMS, struct(16, 16)), "x", "f32[8,16]")
    refused(
        "differs", lambda: q.bind(lambda params, x: infer(params, x) * 2, PARAMS, X), "operations"
    )
    refused("bad-option", lambda: q.bind(infer, PARAMS, X, optimiser=1), "optimizer=")


def test_binding_a_training_plan_asks_for_its_optimizer(tmp_path: Path) -> None:
    trained().save(tmp_path / "plan.json")
    q = load(tmp_path / "plan.json")
    refused("differs", lambda: q.bind(mean_loss, PARAMS, BATCH), "optimizer=")
    other = optax.sgd(0.1, momentum=0.9)
    refused("differs", lambda: q.bind(mean_loss, PARAMS, BATCH, optimizer=other), "opt_state")


def test_fewer_devices_than_the_plan_needs(saved: Path) -> None:
    bound = load(saved).bind(infer, PARAMS, X)
    few = jax.devices()[:4]
    uses = (
        lambda: bound.compile(devices=few),
        lambda: bound.compile(devices=[]),
        lambda: bound.shard(filled(PARAMS), devices=few),
        lambda: bound.init(lambda: filled(PARAMS), devices=few),
    )
    for use in uses:
        refused("too-few-devices", use, "needs 8 devices", "x=2,y=4")
    large = plan(infer, PARAMS, X, cluster="64xh100:8", baselines=False)
    refused("too-few-devices", large.compile, "needs 64 devices", "there are 8")


def test_foreign_trees_are_not_sharded() -> None:
    p = planned(baselines=False)
    for tree in ({"w1": array(16, 32)}, array(3, 3), [1.0, 2.0], None, {}):
        refused("differs", lambda tree=tree: p.shard(tree), "none of the arguments")
    refused("differs", lambda: p.shard(array(8, 16), argnum=0), "not argument 0")
    refused("differs", lambda: p.shard(array(8, 16), argnum=7), "not argument 7")
    refused("differs", lambda: p.init(lambda: jnp.ones(3)), "none of the arguments")


def test_arguments_of_one_form_but_other_shardings_need_a_number() -> None:
    p = plan(
        lambda a, b: a + b, X, X, cluster="8xhost", mesh=(8,), baselines=False,
        pins=(("a", "[8,-]"), ("b", "[-,8]")),
    )  # fmt: skip
    refused("ambiguous", lambda: p.shard(array(8, 16)), "argnum=")
    assert p.shard(array(8, 16), argnum=1).sharding.spec == p.in_shardings[1]
    alike = plan(lambda a, b: a + b, X, X, cluster="8xhost", baselines=False,
                 pins=(("*", "[8,-]"),))  # fmt: skip
    assert alike.shard(array(8, 16)).sharding.spec == alike.in_shardings[0]


def test_compiled_function_refuses_another_structure() -> None:
    with pytest.raises(TypeError, match="plan it again for these"):
        planned(baselines=False).compile()(filled(PARAMS))


def test_compiled_function_refuses_other_shapes_and_types() -> None:
    p = plan(lambda x: x / x.size + x.sum(), X, cluster=slow_machine(), baselines=False)
    step = p.compile()
    for other in (array(16, 16), array(8, 16).astype(jnp.bfloat16), jnp.ones((8, 16), int)):
        with pytest.raises(TypeError, match=r"'x' was planned as float32\[8, 16\]"):
            step(other)
    assert step(np.ones((8, 16))).dtype == jnp.float32
