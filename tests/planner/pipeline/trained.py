# pyright: basic
"""A plan in stages, run beside the step as anyone would write it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.planner.emit.pipelines import arguments, masked


def assert_trains(plan: Any, optimizer: Any, fn: Any = masked, args: Any = None) -> None:
    """Two steps of a plan of a loss, from a file, train as the unsharded ones do."""
    params, batch = args or arguments(batch=64)
    bound = plan.bind(fn, params, batch, optimizer=optimizer, has_aux=True)
    run = bound.compile()

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        of = jax.value_and_grad(fn, has_aux=True, allow_int=True)
        (value, _), grads = of(params, batch)
        grads = jax.tree.map(
            lambda g, p: jnp.zeros_like(p) if g.dtype == jax.dtypes.float0 else g, grads, params
        )
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    theirs = (params, optimizer.init(params))
    mine: Any = jax.tree.map(jnp.copy, (params, bound.bound.loss.built.init(params)))
    for _ in range(2):
        *mine, (value, _) = run(*mine, batch)
        *theirs, expected = step(*theirs, batch)
        np.testing.assert_allclose(value, expected, rtol=1e-4)
    for a, b in zip(jax.tree.leaves(mine[0]), jax.tree.leaves(theirs[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
