# pyright: basic
"""`parallelize` stands in for `jax.jit`, on eight devices."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshwright
from meshwright import ArgumentError, NotTracedError, PlanError, parallelize
from tests.planner.programs import array, slow_machine, struct

MACHINE = slow_machine(8)
quick: Any = functools.partial(parallelize, cluster=MACHINE, baselines=False)
X, Y = array(16, 8), array(16, 8, seed=1)


def weights() -> Any:
    """Parameters of their own, which a call may take away."""
    return {"w": array(8, 8, seed=2), "layers": [array(8, seed=3), None]}


def step(params: Any, x: Any, times: int = 1, *, scale: Any = 1.0, flip: bool = False) -> Any:
    """A step with static, keyword and donated arguments."""
    y = x
    for _ in range(times):
        y = jnp.tanh(y @ params["w"] + params["layers"][0]) * scale
    y = -y if flip else y
    return jax.tree.map(lambda p: p - y.mean(), params), {"y": y, "sum": y.sum()}


MARKS: dict[str, Any] = {
    "static_argnums": 2, "static_argnames": ("times", "flip"), "donate_argnums": 0,
}  # fmt: skip


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def counted(fn: Any) -> tuple[Any, list[int]]:
    """The function, and how often it was traced by shape."""
    traced: list[int] = []

    @functools.wraps(fn)
    def counting(*args: Any, **kwargs: Any) -> Any:
        traced.append(len(traced))
        return fn(*args, **kwargs)

    return counting, traced


@pytest.mark.parametrize(("kwargs", "args"), [
    ({}, (2,)), ({"scale": np.float32(2), "flip": True}, ()),
    *(pytest.param(kwargs, args, marks=pytest.mark.exhaustive) for kwargs, args in (
        ({}, ()), ({"flip": True}, ()), ({"flip": True}, (2,)), ({"scale": 0.5}, ()),
        ({"scale": 0.5}, (2,)), ({"scale": np.float32(2), "flip": True}, (2,)),
    )),
])  # fmt: skip
def test_it_is_jit(kwargs: Any, args: Any) -> None:
    mine, theirs = quick(step, **MARKS), jax.jit(step, **MARKS)
    assert_same(mine(weights(), X, *args, **kwargs), theirs(weights(), X, *args, **kwargs))
    assert_same(mine(weights(), x=X, **kwargs), theirs(weights(), x=X, **kwargs))


def test_a_decorator_with_names_and_documentation() -> None:
    @quick(static_argnames="times")
    def doubled(x: Any, times: int) -> Any:
        """Doubles."""
        return x * 2**times

    assert (doubled.__name__, doubled.__doc__) == ("doubled", "Doubles.")
    assert_same(doubled(X, 3), X * 8)
    assert_same(doubled(X, times=1), X * 2)
    assert doubled.plan.program.name == "doubled"


def test_each_combination_is_planned_once() -> None:
    counting, traced = counted(step)
    mine = quick(counting, **MARKS)
    plans = []
    for x, times in ((X, 1), (Y, 1), (X[:8], 1), (X, 2), (X.astype(jnp.bfloat16), 2), (X, 1)):
        before = len(traced)
        mine(weights(), x, times)
        plans.append(mine.plan if len(traced) > before else None)
    assert [p is not None for p in plans] == [True, False, True, True, True, False]
    # A Python number takes the type of what it meets, so that it is a type of its own.
    add = quick(lambda x, y: x + y)
    half = jnp.ones(8, jnp.bfloat16)
    assert add(half, 1.0).dtype == jnp.bfloat16
    assert add(half, np.float32(1)).dtype == jnp.float32
    # True == 1, but they are other static values.
    told = quick(lambda x, n: x * (3 if n is True else 5), static_argnums=1)
    assert (told(half, 1)[0], told(half, True)[0]) == (5, 3)


def test_a_counter_that_begins_as_a_number_is_planned_and_compiled_once() -> None:
    def count(state: Any, x: Any) -> Any:
        return {"n": state["n"] + 1, "sum": state["sum"] + x}, x * state["n"]

    counting, traced = counted(count)
    mine, state = quick(counting), {"n": 0, "sum": Y}
    for n in range(3):
        state, y = mine(state, X)
        assert (state["n"], y.dtype) == (n + 1, X.dtype)
    assert jnp.asarray(state["n"]).weak_type
    assert len(traced) == 1
    (compiled,) = mine._steps.values()
    assert compiled.jitted._cache_size() == 1


def test_results_fit_the_next_call_and_donated_arguments_are_gone() -> None:
    mine = quick(step, **MARKS)
    params, _ = mine(weights(), X)
    assert "all-reduce" in mine.lower(params, struct(*X.shape)).compile().as_text()
    specs = jax.tree.map(lambda x: x.sharding.spec, params)
    assert specs == mine.plan.in_shardings[0]
    assert not params["w"].is_deleted()
    (here,) = {leaf.sharding.mesh for leaf in jax.tree.leaves(params)}
    x = jax.device_put(X, NamedSharding(here, mine.plan.in_shardings[1]))
    with jax.transfer_guard("disallow_explicit"):
        again, _ = mine(params, x)
    assert params["w"].is_deleted()
    assert not x.is_deleted()
    assert not again["w"].is_deleted()


def test_arguments_are_placed_wherever_they_lie() -> None:
    mine = quick(step, **MARKS)
    expected = mine(weights(), X)
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    placed = jax.device_put(X, NamedSharding(mesh, PartitionSpec("b", "a")))
    one = jax.device_put(X, jax.devices()[5])
    for x in (np.asarray(X), placed, one):
        assert_same(mine(weights(), x), expected)


def test_planned_ahead_with_shapes() -> None:
    counting, traced = counted(step)
    mine = quick(counting, **MARKS)
    with pytest.raises(PlanError, match="no plan before its first call"):
        _ = mine.plan
    shapes = jax.tree.map(lambda x: struct(*x.shape), weights())
    found = mine.plan_for(shapes, struct(16, 8), 2, flip=True)
    assert mine.plan is found
    before = len(traced)
    expected = jax.jit(step, **MARKS)(weights(), X, 2, flip=True)
    assert_same(mine(weights(), X, 2, flip=True), expected)
    assert len(traced) == before
    assert mine.plan is found


def test_from_a_plan_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    quick(step, **MARKS).plan_for(weights(), X, 2, flip=True).save(path)
    mine = parallelize(step, plan=path, **MARKS)
    assert mine.plan.step_s > 0
    expected = jax.jit(step, **MARKS)(weights(), X, 2, flip=True)
    assert_same(mine(weights(), X, 2, flip=True), expected)
    assert_same(parallelize(plan=mine.plan, **MARKS)(step)(weights(), X, 2, flip=True), expected)
    with pytest.raises(PlanError, match="for another function or other arguments"):
        mine(weights(), X, 3, flip=True)
    with pytest.raises(PlanError, match=r"params/layers/0, params/w is donated"):
        parallelize(step, plan=path, **MARKS | {"donate_argnums": None})(weights(), X, 2, flip=True)


def test_a_plan_of_the_same_function_serves(tmp_path: Path) -> None:
    made = meshwright.plan(lambda x, y: x @ y.T, X, Y, cluster=MACHINE, baselines=False)
    made.save(tmp_path / "plan.json")
    mine = parallelize(lambda x, y: x @ y.T, plan=str(tmp_path / "plan.json"))
    assert_same(mine(X, Y), X @ Y.T)


def test_within_other_transformations() -> None:
    def energy(w: Any, x: Any) -> Any:
        return jnp.sin(x @ w).sum()

    mine, w = quick(energy), array(8, 8, seed=4)
    assert_same(jax.jit(lambda w, x: 2 * mine(w, x))(w, X), 2 * energy(w, X))
    assert_same(jax.grad(mine)(w, X), jax.grad(energy)(w, X))
    assert_same(
        jax.vmap(mine, (None, 0))(w, X[:, None]), jax.vmap(energy, (None, 0))(w, X[:, None])
    )
    mesh = jax.make_mesh((8,), ("a",))
    with jax.set_mesh(mesh):
        assert_same(mine(w, X), energy(w, X))
        assert_same(jax.jit(lambda w, x: quick(energy)(w, 2 * x))(w, X), energy(w, 2 * X))
    with pytest.raises(NotTracedError, match="pass what an outer function traces"):
        jax.jit(lambda w, x: quick(lambda x: energy(w, x))(x))(w, X)


def test_one_inside_another_is_a_part_of_it() -> None:
    layer = quick(lambda x, w: jnp.tanh(x @ w))
    first = layer(X, weights()["w"])
    model = quick(lambda x, w: layer(layer(x, w), w).sum())
    assert_same(model(X, weights()["w"]), jnp.tanh(first @ weights()["w"]).sum())
    assert len(model.plan.graph.nodes) > 3
    with pytest.raises(PlanError, match="plan the function inside it"):
        meshwright.plan(layer, X, weights()["w"], cluster=MACHINE)
    around = meshwright.plan(lambda x, w: layer(x, w), X, weights()["w"], cluster=MACHINE)
    assert_same(around.compile()(X, weights()["w"]), first)


class Model:
    """A method whose object is static."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @quick(static_argnums=0)
    def times(self, x: Any) -> Any:
        return x * self.factor


@jax.tree_util.register_dataclass
@dataclass
class Scale:
    """A method of an object that is a pytree."""

    by: Any

    @quick
    def times(self, x: Any) -> Any:
        return x * self.by


def test_methods_and_partials() -> None:
    assert_same(Model(2.0).times(X), X * 2)
    assert_same(Model(3.0).times(X), X * 3)
    half = functools.partial(step, times=2, flip=True)
    assert_same(Scale(array(8, seed=5)).times(X), X * array(8, seed=5))
    assert_same(quick(half)(weights(), X), half(weights(), X))
    assert_same(quick(jax.jit(step, static_argnums=2))(weights(), X), step(weights(), X))


def test_a_training_loop_of_optax() -> None:
    optimizer = optax.adam(1e-2)

    def train(params: Any, state: Any, x: Any) -> Any:
        loss, slope = jax.value_and_grad(lambda p: step(p, x)[1]["sum"])(params)
        updates, state = optimizer.update(slope, state, params)
        return optax.apply_updates(params, updates), state, loss

    mine, theirs = quick(train, donate_argnums=(0, 1)), jax.jit(train, donate_argnums=(0, 1))
    here = there = (weights(), optimizer.init(weights()))
    there = jax.tree.map(jnp.copy, there)
    for n in range(3):
        *here, loss = mine(*here, X * n)
        *there, expected = theirs(*there, X * n)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert_same(here, there)


def test_gradients_that_optax_accumulates() -> None:
    optimizer = optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2)

    def train(params: Any, state: Any, x: Any) -> Any:
        slope = jax.grad(lambda p: step(p, x)[1]["sum"])(params)
        updates, state = optimizer.update(slope, state, params)
        return optax.apply_updates(params, updates), state

    mine, theirs = quick(train), jax.jit(train)
    here = there = (weights(), optimizer.init(weights()))
    for n in range(4):
        here, there = mine(*here, X * n), theirs(*there, X * n)
    assert_same(here, there)
    assert len(mine._plans) == 1


class OwnError(Exception):
    """An error of the user's code."""


def test_what_the_function_raises_is_raised_unchanged() -> None:
    cause, mine = OwnError("the reason"), OwnError("mine")

    def failing(x: Any) -> Any:
        raise mine from cause

    for _ in range(2):
        with pytest.raises(OwnError) as found:
            quick(failing)(X)
        assert found.value is mine
        assert found.value.__cause__ is cause
    with pytest.raises(jax.errors.TracerBoolConversionError):
        quick(lambda x: x if x.sum() > 0 else -x)(X)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        quick(step, **MARKS)(weights())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no cluster": ({}, "expected either cluster= or plan=, got neither"),
    "both": ({"cluster": MACHINE, "plan": "plan.json"}, "got both"),
    "setting": ({"cluster": MACHINE, "foo": 3}, "unknown setting foo"),
    "plan and setting": ({"plan": "plan.json", "mesh": (8,)}, "nothing is left to search"),
    "file": ({"plan": "no.json"}, "no.json"),
    "optimizer": ({"cluster": MACHINE, "optimizer": optax.sgd(1)}, "makes another function"),
    "name": ({"cluster": MACHINE, "static_argnames": "foo"}, "foo"),
    "overlap": ({"cluster": MACHINE, "static_argnums": 0, "donate_argnums": 0}, "intersect"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_before_any_call(name: str) -> None:
    settings, message = REFUSED[name]
    with pytest.raises(PlanError, match=message):
        parallelize(step, **settings)


def test_what_a_call_refuses() -> None:
    with pytest.raises(ArgumentError, match="'flip' is of type list, which has no hash"):
        quick(step, static_argnames="flip")(weights(), X, flip=[])
    with pytest.raises(NotTracedError, match="is a str, expected an array"):
        quick(step)(weights(), "x")
    many = parallelize(step, cluster="64xh100", **MARKS)
    with pytest.raises(PlanError, match="'64xh100' needs 64 devices, there are 8") as found:
        many(weights(), X)
    assert found.value.kind == "too-few-devices"
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=64" in found.value.remedy
