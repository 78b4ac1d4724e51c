# pyright: basic
"""A planned step runs whatever mesh its caller has set, and says where it cannot."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from planner import plan
from planner.emit.jit import EMISSIONS
from tests.planner.pipeline.unproved import without_proof

X = np.arange(64.0, dtype=np.float32).reshape(8, 8) / 64
WHOLE, CROSSED = (("a", 8),), (("a", 4), ("b", 2))


def mesh_of(axes: tuple[tuple[str, int], ...]) -> Any:
    return jax.make_mesh(tuple(n for _, n in axes), tuple(name for name, _ in axes))


def multiplied(x, y):
    return jnp.tanh(x @ y).sum(0)


@pytest.mark.parametrize("axes", [WHOLE, CROSSED])
@pytest.mark.parametrize("emission", EMISSIONS)
def test_within_a_mesh_of_the_caller(emission: str, axes: tuple[tuple[str, int], ...]) -> None:
    mesh = mesh_of(axes)
    with jax.set_mesh(mesh):
        placed = jax.device_put(X, NamedSharding(mesh, PartitionSpec("a")))
        found = plan(
            multiplied, X, X, cluster="8xhost", mesh=(8,), baselines=False, emission=emission,
            substitutions=False,
        )  # fmt: skip
        step = found.compile()
        results = step(X, X), step(placed, placed), jax.jit(step)(X, X)
        assert step.lower(X, X).as_text() == step.lower_as_planned().as_text()
        assert jax.sharding.get_mesh() == mesh
    for result in results:
        np.testing.assert_allclose(result, np.tanh(X @ X).sum(0), rtol=1e-5)


def added_up(x, places):
    """A scatter, which holds what it does with two numbers as a program of its own."""
    return jnp.zeros((5, 8)).at[places].add(x), x.at[:, :4].multiply(2.0)


@pytest.mark.parametrize("emission", EMISSIONS)
def test_a_scatter_within_a_mesh_of_the_caller(emission: str) -> None:
    places = np.arange(8) % 5
    with jax.set_mesh(mesh_of(WHOLE)):
        found = plan(
            added_up, X, places, cluster="8xhost", mesh=(8,), baselines=False, emission=emission
        )
        results = found.compile()(X, places)
    for mine, result in zip(jax.jit(added_up)(X, places), results, strict=True):
        np.testing.assert_allclose(result, mine, rtol=1e-6)


@without_proof()
def test_a_pipeline_within_a_mesh_of_the_caller() -> None:
    def loss(params, batch):
        for w in params:
            batch = jnp.tanh(batch @ w)
        return jnp.mean(batch**2)

    params, optimizer = [X + 0, X + 1], optax.sgd(0.1)
    found = plan(
        loss, params, X, cluster="8xhost", optimizer=optimizer, pipeline=2, microbatches=2,
        baselines=False,
    )  # fmt: skip
    step, state = found.compile(), optimizer.init(params)
    expected = step(params, state, X)
    with jax.set_mesh(mesh_of(CROSSED)):
        results = step(params, state, X), found.compile()(params, state, X)
    for result in results:
        jax.tree.map(np.testing.assert_array_equal, result, expected)


def test_types_of_another_mesh_are_refused() -> None:
    mesh = mesh_of(CROSSED)
    step = plan(multiplied, X, X, cluster="8xhost", mesh=(8,), baselines=False).compile()
    with jax.set_mesh(mesh):
        placed = jax.device_put(X, NamedSharding(mesh, PartitionSpec("a", "b")))
        with pytest.raises(TypeError, match=r"over another mesh, {'a': 4, 'b': 2}.*outside"):
            jax.jit(step)(placed, placed)
