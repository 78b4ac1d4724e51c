# pyright: basic
"""`parallelize` stands in for `equinox.filter_jit`: what is no array is static."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from meshwright import ArgumentError, parallelize
from tests.helpers_exhaustive import usual
from tests.planner.programs import array, slow_machine

eqx = pytest.importorskip("equinox", reason="needs Equinox: pip install 'meshwright[equinox]'")
MACHINE = slow_machine(8)
quick: Any = functools.partial(
    parallelize, cluster=MACHINE, baselines=False, substitutions=False, mesh=(2, 4)
)
X, Y = array(16, 8), array(16, 8, seed=1)


class Model(eqx.Module):
    """A module with functions, settings and statistics beside its parameters."""

    mlp: Any
    norm: Any
    dropout: Any
    scale: float
    name: str = eqx.field(static=True)

    def __init__(self, seed: int = 0, scale: float = 2.0) -> None:
        self.mlp = eqx.nn.MLP(8, 8, 16, 1, activation=jax.nn.gelu, key=jax.random.key(seed))
        self.norm = eqx.nn.BatchNorm(8, "batch", mode="ema")
        self.dropout = eqx.nn.Dropout(0.1)
        self.scale, self.name = scale, "model"

    def __call__(self, x: Any, state: Any, key: Any) -> Any:
        x, state = self.norm(self.mlp(x) * self.scale, state)
        return self.dropout(x, key=key), state


def step(model: Any, state: Any, opt_state: Any, optimizer: Any, x: Any, *, key: Any) -> Any:
    def loss_of(model: Any, state: Any) -> Any:
        call = jax.vmap(model, (0, None, 0), (0, None), axis_name="batch")
        found, state = call(x, state, jax.random.split(key, len(x)))
        return jnp.mean((found - Y) ** 2), state

    (loss, state), slope = eqx.filter_value_and_grad(loss_of, has_aux=True)(model, state)
    updates, opt_state = optimizer.update(slope, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, opt_state, loss


OPTIMIZER = optax.sgd(1e-2, momentum=0.9)


def made(**settings: Any) -> Any:
    model, state = eqx.nn.make_with_state(Model)(**settings)
    return model, state, OPTIMIZER.init(eqx.filter(model, eqx.is_array))


def assert_same(found: Any, expected: Any) -> None:
    mine, theirs = jax.tree.flatten(found), jax.tree.flatten(expected)
    assert mine[1] == theirs[1]
    for a, b in zip(mine[0], theirs[0], strict=True):
        if eqx.is_array(b):
            np.testing.assert_allclose(a, b, 1e-4, 1e-5)
        else:
            assert (a, type(a)) == (b, type(b))


@pytest.mark.parametrize("donated", usual([None, (0, 2)], [(0, 2)]))
def test_a_training_loop(donated: Any, caplog: pytest.LogCaptureFixture) -> None:
    mine, theirs = quick(step, donate_argnums=donated), eqx.filter_jit(step)
    here = made()
    there = jax.tree.map(lambda x: jnp.array(x) if eqx.is_array(x) else x, here)
    for n in range(3):
        with jax.log_compiles():
            *here, loss = mine(*here, OPTIMIZER, X, key=jax.random.key(n))
        *there, expected = theirs(*there, OPTIMIZER, X, key=jax.random.key(n))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert_same(here, there)
    assert sum("Compiling jit(planned_step)" in text for text in caplog.messages) == 1
    assert repr(mine) == "<parallelized step, 1 plans>"
    inputs = {item.name: item.role for item in mine.plan.graph.inputs}
    assert inputs["model/mlp/layers/0/weight"] == "parameter"
    assert inputs["opt_state/0/trace/mlp/layers/0/weight"] == "optimizer-state"
    assert len(mine.plan.bound.tied) == len(inputs) - 3  # all but x, y and key


def test_what_is_no_array_is_static() -> None:
    def told(model: Any, how: Any, times: Any, x: Any) -> Any:
        y = x
        for _ in range(times):
            y = how(y) * model.scale
        return y, times, how

    mine, theirs = quick(told), eqx.filter_jit(told)
    for scale, times in ((2.0, 1), (2.0, 3), (3.0, 3), (2.0, 1)):
        model = made(scale=scale)[0]
        assert_same(mine(model, jnp.sin, times, X), theirs(model, jnp.sin, times, X))
    assert len(mine._plans) == 3
    for flag in (1, True, 1.0):
        assert type(quick(lambda model, x: x)(made()[0], flag)) is type(flag)
    with pytest.raises(ArgumentError, match="'' is of type set, which has no hash"):
        mine(made()[0], set(), 1, X)


def test_functions_without_modules_are_as_under_jit() -> None:
    mine = quick(lambda x, n: (x * n, n))
    y, n = mine(X, 2)
    assert isinstance(n, jax.Array)
    np.testing.assert_allclose(y, X * 2, rtol=1e-6)
    model = quick(lambda key: eqx.nn.MLP(8, 8, 16, 1, key=key))(jax.random.key(3))
    assert_same(model, eqx.filter_jit(lambda key: eqx.nn.MLP(8, 8, 16, 1, key=key))(
        jax.random.key(3)))  # fmt: skip


class Scaled(eqx.Module):
    """A module with a planned method."""

    by: Any
    how: Any

    @quick
    def times(self, x: Any) -> Any:
        return self.how(x * self.by)


def test_methods_and_other_functions() -> None:
    scaled = Scaled(array(8, seed=2), jnp.tanh)
    np.testing.assert_allclose(scaled.times(X), jnp.tanh(X * scaled.by), rtol=1e-5)
    inner = quick(lambda model, x: model.how(x @ jnp.diag(model.by)).sum())
    expected = jnp.tanh(X * scaled.by).sum()
    outer = quick(lambda model, x: inner(model, x) * 2)
    np.testing.assert_allclose(outer(scaled, X), 2 * expected, rtol=1e-5)
    found = eqx.filter_jit(lambda model, x: inner(model, x))(scaled, X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    found = quick(eqx.filter_jit(lambda model, x: model.how(x * model.by).sum()))(scaled, X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_planned_ahead_and_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ahead: Any = quick(step)
    args: Any = (*made(), OPTIMIZER, X)
    shapes: Any = eqx.filter_eval_shape(lambda: args)
    ahead.plan_for(*shapes, key=jax.random.key(0)).save(path)
    found = parallelize(step, plan=path)(*args, key=jax.random.key(0))
    model, _, opt_state, optimizer, _ = ahead.structs_for(*shapes, key=jax.random.key(0))
    assert optimizer == OPTIMIZER
    assert model.mlp.activation is args[0].mlp.activation
    for struct, leaf in zip(
        jax.tree.leaves(eqx.filter((model, opt_state), lambda x: hasattr(x, "sharding"))),
        jax.tree.leaves(eqx.filter((found[0], found[2]), eqx.is_array)), strict=True,
    ):  # fmt: skip
        assert (struct.shape, struct.dtype) == (leaf.shape, leaf.dtype)
        assert struct.sharding.is_equivalent_to(leaf.sharding, leaf.ndim)


@pytest.mark.exhaustive
def test_a_checkpoint_goes_on_with_fewer_devices(tmp_path: Path) -> None:
    orbax = pytest.importorskip("orbax.checkpoint", reason="needs Orbax; `make .venv` installs it")
    key = jax.random.key(0)
    *here, _ = quick(step)(*made(), OPTIMIZER, X, key=key)
    fewer: Any = quick(step, cluster=slow_machine(4), mesh=(2, 2))
    structs: Any = fewer.structs_for(*eqx.filter_eval_shape(made), OPTIMIZER, X, key=key)[:3]
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", eqx.filter(here, eqx.is_array))
        checkpointer.wait_until_finished()
        shapes, static = eqx.partition(list(structs), lambda x: isinstance(x, jax.ShapeDtypeStruct))
        restored = eqx.combine(checkpointer.restore(tmp_path / "state", shapes), static)
    weight = restored[0].mlp.layers[0].weight
    assert len(weight.sharding.device_set) == 4
    *found, loss = fewer(*restored, OPTIMIZER, X, key=key)
    *there, _ = eqx.filter_jit(step)(*made(), OPTIMIZER, X, key=key)
    *there, expected = eqx.filter_jit(step)(*there, OPTIMIZER, X, key=key)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert_same(found, there)
    assert len(fewer._plans) == 1
