# pyright: basic
"""Losses that go through the parts of a batch twice: their values where numbers overflow."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from planner.training.step import build_step

BATCH, WIDTH = 8, 4


# exp(S) overflows where S does not, exp(S) where S does; 1 / S is 0 where S overflows.
@pytest.mark.parametrize(("size", "value"), [(2.0, np.inf), (1e30, np.inf), (2e19, 0.0)])
def test_a_loss_that_overflows_is_what_it_is_on_the_whole_batch(size: float, value: float) -> None:
    def loss(p: Any, b: Any) -> Any:
        squares = jnp.sum((b["x"] @ p) ** 2)
        return jnp.exp(squares) if value else 1 / squares

    batch = {"x": jnp.full((BATCH, WIDTH), size, jnp.float32)}
    params = jnp.full((WIDTH, 1), 2.0, jnp.float32)
    built = build_step(loss, params, batch, optax.sgd(0.1), microbatches=4)
    assert built.inside is not None
    assert built.inside.twice
    found = built.fn(params, built.init(params), batch)[2]
    assert loss(params, batch) == value
    assert found == value
