# pyright: basic
"""`parallelize` stands in for `nnx.jit`: modules are taken apart, and updated in place."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

from meshwright import parallelize
from tests.helpers_exhaustive import usual
from tests.planner.programs import array, slow_machine

nnx = pytest.importorskip("flax.nnx", reason="needs Flax: pip install 'meshwright[flax]'")
MACHINE = slow_machine(8)
quick: Any = functools.partial(
    parallelize, cluster=MACHINE, baselines=False, substitutions=False, mesh=(2, 4)
)
X, Y = array(16, 8), array(16, 8, seed=1)


class Model(nnx.Module):
    """A module with parameters, statistics, and random draws."""

    def __init__(self, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.up = nnx.Linear(8, 16, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.down(self.dropout(nnx.relu(self.norm(self.up(x)))))


def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    def loss_of(model: Any) -> Any:
        return jnp.mean((model(x) - y) ** 2)

    loss, slope = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, slope)
    return loss


def made() -> Any:
    model = Model()
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def values(*nodes: Any) -> dict[Any, np.ndarray]:
    """The numbers in modules, by path."""
    state = nnx.to_flat_state(nnx.state(nodes))
    raw = {path: leaf.get_value() for path, leaf in state}
    typed = jax.dtypes.prng_key
    return {
        path: np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, typed) else x)
        for path, x in raw.items()
    }


def assert_same(found: Any, expected: Any) -> None:
    mine, theirs = values(*found), values(*expected)
    assert mine.keys() == theirs.keys()
    for path in mine:
        np.testing.assert_allclose(mine[path], theirs[path], 1e-4, 1e-5, err_msg=str(path))


@pytest.mark.parametrize("donated", usual([None, (0, 1)], [(0, 1)]))
def test_a_training_loop(donated: Any, caplog: pytest.LogCaptureFixture) -> None:
    mine, theirs = quick(train, donate_argnums=donated), nnx.jit(train)
    here, there = made(), made()
    for n in range(3):
        with jax.log_compiles():
            loss = mine(*here, X, Y * n)
        np.testing.assert_allclose(loss, theirs(*there, X, Y * n), rtol=1e-5)
    assert sum("Compiling jit(planned_step)" in text for text in caplog.messages) == 1
    assert_same(here, there)
    assert repr(mine) == "<parallelized train, 1 plans>"
    kernel = here[0].up.kernel.get_value().sharding
    places = mine.plan.in_shardings[0]
    assert kernel.spec == dict(zip(places.names, places.leaves, strict=True))["up/kernel"]
    roles = {item.name: item.role for item in mine.plan.graph.inputs}
    assert roles["model/up/kernel"] == "parameter"
    assert roles["optimizer/opt_state/0/mu/up/kernel"] == "optimizer-state"


def test_only_what_changes_comes_back() -> None:
    def scale(model: Any, x: Any) -> Any:
        model.up.kernel[...] = model.up.kernel * 2
        return (x @ model.up.kernel).sum()

    def total(model: Any, x: Any) -> Any:
        return model.up(x).sum()

    model = Model()
    kernel, bias = model.up.kernel.get_value(), model.down.bias.get_value()
    found = quick(scale)
    np.testing.assert_allclose(found(model, X), (X @ kernel).sum() * 2, rtol=1e-4)
    np.testing.assert_allclose(model.up.kernel.get_value(), kernel * 2, rtol=1e-6)
    assert model.down.bias.get_value() is bias
    assert found.plan.bound.out_names == ("model/up/kernel", "out")
    (tie,) = found.plan.bound.tied
    assert found.plan.graph.inputs[tie[0]].name == "model/up/kernel"
    plain = quick(total)
    plain(model, X)
    assert plain.plan.bound.out_names == ("out",)


def test_shared_and_nested_modules_and_keyword_arguments() -> None:
    def step(models: Any, *, again: Any, times: int) -> Any:
        models["one"].up.kernel[...] = models["one"].up.kernel + times
        return again.up.kernel.sum()  # it is the same module

    for wrap in (quick(step, static_argnames="times"), nnx.jit(step, static_argnames="times")):
        model = Model()
        before = model.up.kernel.sum()
        found = wrap({"one": model, "x": X}, again=model, times=3)
        np.testing.assert_allclose(found, before + 3 * 8 * 16, rtol=1e-5)
        np.testing.assert_allclose(model.up.kernel.sum(), found, rtol=1e-5)


def test_modules_as_results() -> None:
    @quick(static_argnums=0)
    def create(seed: int) -> Any:
        return Model(seed), {"seed": seed}

    @quick
    def moved(model: Any, x: Any) -> Any:
        model.sums = nnx.Cache(x.sum(0))  # a variable that was not there
        return model

    (model, rest), again = create(3), create(3)[0]
    assert rest["seed"] == 3
    assert model is not again
    assert_same([model], [Model(3)])
    assert moved(model, X) is model
    np.testing.assert_allclose(model.sums.get_value(), X.sum(0), rtol=1e-5)
    assert moved(model, Y) is model  # other variables, another plan
    np.testing.assert_allclose(model.sums.get_value(), Y.sum(0), rtol=1e-5)
    assert len(moved._plans) == 2


def test_states_are_values_as_under_jit() -> None:
    def step(definition: Any, state: Any, x: Any) -> Any:
        model = nnx.merge(definition, state)
        model.up.kernel[...] = model.up.kernel * 2
        return nnx.state(model), model.up(x)

    definition, state = nnx.split(Model())
    kernel = state["up"]["kernel"].get_value()
    mine = quick(step)
    found, y = mine(definition, state, X)
    np.testing.assert_allclose(y, X @ kernel * 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["up"]["kernel"].get_value(), kernel * 2, rtol=1e-6)
    assert state["up"]["kernel"].get_value() is kernel
    _, y = mine(definition, found, X)
    np.testing.assert_allclose(y, X @ kernel * 4, rtol=1e-4, atol=1e-5)
    assert len(mine._plans) == 1


class Deep(nnx.Module):
    """Layers in a loop, recomputed in the backward pass."""

    def __init__(self) -> None:
        @nnx.vmap(in_axes=0, out_axes=0)
        def layers(key: Any) -> Any:
            return nnx.Linear(8, 8, rngs=nnx.Rngs(key))

        self.layers = layers(jax.random.split(jax.random.key(0), 3))

    def __call__(self, x: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x: Any, layer: Any) -> Any:
            return x + nnx.remat(lambda layer, x: nnx.relu(layer(x)))(layer, x)

        return run(x, self.layers)


def test_transformations_inside() -> None:
    def pair() -> Any:
        model = Deep()
        return model, nnx.Optimizer(model, optax.sgd(1e-2), wrt=nnx.Param)

    mine, theirs, here, there = quick(train), nnx.jit(train), pair(), pair()
    for _ in range(2):
        np.testing.assert_allclose(mine(*here, X, Y), theirs(*there, X, Y), rtol=1e-5)
    assert_same(here, there)


def test_adapters_alone_come_back() -> None:
    base = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    model = nnx.LoRA(8, 2, 8, base_module=base, rngs=nnx.Rngs(1))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.LoRAParam)

    def tune(model: Any, optimizer: Any, x: Any) -> Any:
        of = nnx.DiffState(0, nnx.LoRAParam)
        loss, slope = nnx.value_and_grad(lambda m: (m(x) ** 2).mean(), argnums=of)(model)
        optimizer.update(model, slope)
        return loss

    mine = quick(tune)
    losses = [float(mine(model, optimizer, X)) for _ in range(3)]
    assert losses[2] < losses[1]
    names = mine.plan.bound.out_names
    assert [n for n in names if n.startswith("model/")] == ["model/lora_a", "model/lora_b"]
    tied = {mine.plan.graph.inputs[a].name: names[b] for a, b in mine.plan.bound.tied}
    assert tied == {name: name for name in names[:-1]}


OUTER: dict[str, Any] = {
    "in nnx.jit": lambda inner, *here: nnx.jit(
        lambda model, optimizer, x: inner(model, optimizer, x, Y)
    )(*here, X),
    "in parallelize": lambda inner, *here: quick(
        lambda model, optimizer: inner(model, optimizer, X, Y)
    )(*here),
    "around nnx.jit": lambda _, *here: quick(nnx.jit(train))(*here, X, Y),
}


@pytest.mark.parametrize("name", usual(OUTER, ["in nnx.jit"]))
def test_within_other_functions(name: str) -> None:
    here, there = made(), made()
    loss = OUTER[name](quick(train), *here)
    np.testing.assert_allclose(loss, nnx.jit(train)(*there, X, Y), rtol=1e-5)
    assert_same(here, there)


def test_what_fails_changes_nothing() -> None:
    def failing(model: Any) -> Any:
        model.up.kernel[...] = model.up.kernel * 2
        raise ZeroDivisionError

    model = Model()
    with pytest.raises(ZeroDivisionError):
        quick(failing)(model)
    assert_same([model], [Model()])


def test_planned_ahead_and_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ahead: Any = quick(train)
    shapes: list[Any] = list(nnx.eval_shape(made))
    ahead.plan_for(*shapes, jax.ShapeDtypeStruct(X.shape, X.dtype), Y).save(path)
    assert_same(here := made(), made())
    mine: Any = parallelize(train, plan=path)
    np.testing.assert_allclose(mine(*here, X, Y), nnx.jit(train)(*made(), X, Y), rtol=1e-5)
    structs: Any = ahead.structs_for(*shapes, X, Y)
    model, optimizer, x, _ = structs
    for (name, found), (_, node) in zip(
        nnx.to_flat_state(nnx.state((model, optimizer))),
        nnx.to_flat_state(nnx.state(here)), strict=True,
    ):  # fmt: skip
        struct, there = found.get_value(), node.get_value()
        assert isinstance(struct.sharding, NamedSharding)
        assert struct.shape == there.shape
        if "key" not in name:  # which does not change
            assert struct.sharding.is_equivalent_to(there.sharding, there.ndim), name
    assert x.sharding.spec == ahead.plan.in_shardings[2]


def test_a_checkpoint_goes_on_with_fewer_devices(tmp_path: Path) -> None:
    orbax = pytest.importorskip("orbax.checkpoint", reason="needs Orbax; `make .venv` installs it")
    here, there = made(), made()
    quick(train)(*here, X, Y)
    fewer: Any = quick(train, cluster=slow_machine(4), mesh=(2, 2))
    structs: Any = fewer.structs_for(*nnx.eval_shape(made), X, Y)[:2]
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.to_pure_dict(nnx.state(here)))
        checkpointer.wait_until_finished()
        shapes = nnx.to_pure_dict(nnx.state(structs))
        nnx.update(structs, checkpointer.restore(tmp_path / "state", shapes))
    assert len(structs[0].up.kernel.get_value().sharding.device_set) == 4
    expected = [nnx.jit(train)(*there, X, Y * n) for n in (1, 2)]
    np.testing.assert_allclose(fewer(*structs, X, Y * 2), expected[1], rtol=1e-5)
    assert_same(structs, there)
    assert len(fewer._plans) == 1
