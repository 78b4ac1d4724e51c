# pyright: basic
"""Compiles the loops of the solver, which are kept on disk, before several processes need them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from planner import plan

Shape = jax.ShapeDtypeStruct


def loss(params: list[jax.Array], batch: jax.Array) -> jax.Array:
    for w in params:
        batch = jnp.tanh(batch @ w)
    return jnp.mean(batch**2)


def main() -> None:
    params, batch = [Shape((64, 64), jnp.float32)] * 3, Shape((64, 64), jnp.float32)
    plan(loss, params, batch, cluster="8xh100", optimizer=optax.adam(1e-3), substitutions=False)


if __name__ == "__main__":
    main()
