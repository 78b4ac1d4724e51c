# pyright: basic
"""Parts of a built problem: what is set aside at a moment is not there for a choice."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct as Shape

from planner.sharding.problem.restricted import Cuts, Within
from tests.planner.spaces import Space, space


def layers(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


@pytest.fixture(scope="module")
def small() -> Space:
    weights = tuple(Shape((16, 16), jnp.float32) for _ in range(3))
    return space(layers, weights, Shape((8, 16), jnp.float32), mesh=(2, 2))


@pytest.mark.parametrize("some", [False, True])
def test_what_is_set_aside_is_not_there(small: Space, some: bool) -> None:
    built, rng = small.built, np.random.default_rng(0)
    if some:
        built = built.watching(tuple(range(0, built.live_intervals.horizon, 3)))
    whole = Within(built, (None,) * len(built.refs), Cuts())
    aside = {1: 700.0, 4: 90.0}
    left = whole.beside(aside)
    moments = left.built.moments
    for _ in range(60):
        choice = small.draw(rng)
        memory = built.live_intervals.memory(choice)
        for moment, size in aside.items():
            memory[moment] += size
        seen = memory if moments is None else memory[list(moments)]
        followed = (choice[n] for n in left.built.followed)
        problem = left.problem(1e9)
        whole_choice = (*choice, *followed, *(0 for _ in aside))
        assert left.lowered((*choice, *(choice[n] for n in built.followed))) == whole_choice
        assert problem.peak(whole_choice) == pytest.approx(seen.max())
        assert problem.cost(whole_choice) == pytest.approx(small.built.problem.cost(choice))
    assert whole.problem(1e9).size == left.problem(1e9).size - len(aside) - (
        len(left.built.followed) - len(built.followed)
    )
