# pyright: basic
"""Parameters and optimizer state of a plan in stages, created where each stage keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from planner import plan
from planner.common.errors import PlanError
from planner.emit.pipeline.holdings import Pieces
from planner.emit.pipeline.initial import PieceShardings
from tests.planner.emit.pipelines import arguments, everything, three_steps
from tests.planner.pipeline.unproved import without_proof
from tests.planner.programs import slow_machine

ADAM = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2))


@pytest.fixture(autouse=True)
def compiled_in_haste() -> Iterator[None]:
    """What is tested here is what the programs compute, not how fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def fresh(key: Any, scale: float = 0.3) -> Any:
    """Parameters of `everything`, drawn anew."""
    params, _ = arguments()
    keys = iter(jax.random.split(key, 8))

    def leaf(x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.ones(x.shape, x.dtype)
        return scale * jax.random.normal(next(keys), x.shape, x.dtype)

    return jax.tree.map(leaf, params)


@cache
def in_two_stages() -> Any:
    """A plan that tests share; none changes it."""
    params, batch = arguments()
    with without_proof():
        return plan(
            everything, params, batch, optimizer=ADAM, has_aux=True, cluster=slow_machine(4),
            microbatches=4, pipeline=2, baselines=False, substitutions=False, schedules=("1f1b",),
        )  # fmt: skip


def parts_of(x: Any) -> list[jax.Array]:
    return list(x.parts) if isinstance(x, Pieces) else [x]


def placed_alike(found: Any, given: Any) -> None:
    """The leaves of both have the same values, on the same devices, split alike."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(given), strict=True):
        assert isinstance(a, Pieces) == isinstance(b, Pieces)
        for own, other in zip(parts_of(a), parts_of(b), strict=True):
            assert own.sharding.is_equivalent_to(other.sharding, own.ndim)
            assert own.dtype == other.dtype
            np.testing.assert_allclose(np.asarray(own), np.asarray(other), rtol=1e-6)


def test_what_is_created_in_places_is_what_was_placed_there() -> None:
    made = in_two_stages()
    step, key = made.compile(), jax.random.key(3)
    whole = fresh(key)
    params = made.init(fresh, key, 0.3)
    placed_alike(params, step.place(whole, 0))
    state = made.init(made.bound.loss.built.init, params, argnum=1)
    placed_alike(state, step.place(made.bound.loss.built.init(whole), 1))
    # no device holds what only the other stage has
    assert isinstance(params["layers"]["w"], Pieces)
    first, second = params["layers"]["w"].parts
    assert not set(first.sharding.device_set) & set(second.sharding.device_set)


def test_a_step_takes_what_was_created() -> None:
    made = in_two_stages()
    _, batch = arguments()
    whole = fresh(jax.random.key(3))
    params = made.init(fresh, jax.random.key(3), argnum=0)
    built = made.bound.loss.built
    state = made.init(built.init, params)
    expected = three_steps(jax.jit(built.fn), whole, built.init(whole), batch)
    found = three_steps(made.compile(), params, state, batch)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5)


def test_shardings_are_those_of_what_is_placed() -> None:
    made = in_two_stages()
    params, _ = arguments()
    of_params, of_state, of_batch = made.shardings
    assert of_batch is None
    state = made.bound.loss.built.init(params)
    step = made.compile()
    is_leaf = lambda x: isinstance(x, PieceShardings)  # noqa: E731
    for tree, wanted, number in ((params, of_params, 0), (state, of_state, 1)):
        leaves = jax.tree.leaves(step.place(tree, number))
        for x, there in zip(leaves, jax.tree.leaves(wanted, is_leaf=is_leaf), strict=True):
            each = there.pieces if is_leaf(there) else [(0, -1, there)]
            assert is_leaf(there) == isinstance(x, Pieces)
            assert [
                s.is_equivalent_to(p.sharding, p.ndim)
                for (_, _, s), p in zip(each, parts_of(x), strict=True)
            ] == [True] * len(each)
            if is_leaf(there):
                assert [high - low for low, high, _ in each] == [len(p) for p in x.parts]


def test_arguments_are_told_by_their_form() -> None:
    made = in_two_stages()
    params, batch = arguments()
    placed_alike(made.shard(params), made.compile().place(params, 0))
    with pytest.raises(PlanError, match="neither parameters nor optimizer state"):
        made.init(lambda: jnp.zeros(3))
    with pytest.raises(PlanError, match="which is not argument 1"):
        made.init(fresh, jax.random.key(0), argnum=1)
    with pytest.raises(PlanError, match="must be 0 or 1"):
        made.init(lambda: batch, argnum=2)
